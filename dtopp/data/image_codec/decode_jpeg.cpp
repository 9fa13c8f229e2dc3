#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <string>

#include <jpeglib.h>
// jerror.h must follow jpeglib.h.
#include <jerror.h>

#include "dtopp/base/errors.h"
#include "dtopp/data/image_codec/decoders.h"
#include "dtopp/data/image_codec/orientation.h"

namespace dtopp::data {
namespace {

// Limits of decoding time: a small progressive file may hold thousands of scans, and each scan is a pass over
// all pixels. Photographs have about ten.
constexpr uint64_t kMaxScannedPixels = 1'000'000'000;
constexpr uint64_t kMinScansAllowed = 16, kMaxScansAllowed = 500;

int max_scans(const jpeg_decompress_struct& info) {
  const uint64_t pixels = uint64_t{info.image_height} * info.image_width;
  return static_cast<int>(std::clamp(kMaxScannedPixels / pixels, kMinScansAllowed, kMaxScansAllowed));
}

// The state of libjpeg and of this decoder, in one object that outlives a longjmp out of the library.
struct JpegReader {
  jpeg_decompress_struct info = {};
  jpeg_error_mgr errors = {};
  jpeg_progress_mgr progress = {};
  std::jmp_buf failed = {};
  char message[JMSG_LENGTH_MAX] = {};
  RawPicture out;
  std::vector<uint8_t> cmyk_row;
};

[[noreturn]] void fail_jpeg(JpegReader& reader) { std::longjmp(reader.failed, 1); }

void on_error(j_common_ptr info) {
  auto& reader = *static_cast<JpegReader*>(info->client_data);
  (*info->err->format_message)(info, reader.message);
  fail_jpeg(reader);
}

// Returns true for warnings after which all pixels are correct. After any other warning, libjpeg has invented
// some of them.
bool is_harmless(int code) {
  return code == JWRN_EXTRANEOUS_DATA || code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR ||
         code == JWRN_NOT_SEQUENTIAL || code == JWRN_TOO_MUCH_DATA;
}

void on_message(j_common_ptr info, int level) {
  if (level < 0 && !is_harmless(info->err->msg_code)) on_error(info);
}

void on_progress(j_common_ptr info) {
  auto& reader = *static_cast<JpegReader*>(info->client_data);
  if (reader.info.input_scan_number <= max_scans(reader.info)) return;
  std::snprintf(reader.message, sizeof(reader.message), "more than %d scans", max_scans(reader.info));
  fail_jpeg(reader);
}

void read_orientation(JpegReader& reader) {
  for (const jpeg_marker_struct* marker = reader.info.marker_list; marker; marker = marker->next) {
    if (marker->marker != JPEG_APP0 + 1 || marker->data_length < 6) continue;
    const std::span data(marker->data, marker->data_length);
    if (!std::equal(data.begin(), data.begin() + 4, "Exif")) continue;
    reader.out.orientation = exif_orientation(std::as_bytes(data));
    return;
  }
}

// Converts as Pillow does: the white that remains after the ink of each plate.
void cmyk_to_rgb(std::span<const uint8_t> cmyk, bool inverted, uint8_t* rgb) {
  for (size_t i = 0; i < cmyk.size(); i += 4, rgb += 3) {
    const auto light = [&](size_t plate) { return inverted ? cmyk[i + plate] : 255U - cmyk[i + plate]; };
    const unsigned white = light(3);
    for (size_t c = 0; c < 3; ++c) {
      const unsigned ink = (255U - light(c)) * white + 128;
      rgb[c] = static_cast<uint8_t>(white - ((ink + (ink >> 8)) >> 8));
    }
  }
}

void choose_colours(jpeg_decompress_struct& info) {
  if (info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK)
    info.out_color_space = JCS_CMYK;
  else if (info.jpeg_color_space != JCS_GRAYSCALE)
    info.out_color_space = JCS_RGB;
}

void read_rows(JpegReader& reader) {
  jpeg_decompress_struct& info = reader.info;
  const bool cmyk = info.out_color_space == JCS_CMYK;
  Picture& picture = reader.out.picture;
  if (cmyk) reader.cmyk_row.resize(size_t{4} * info.output_width);
  while (info.output_scanline < info.output_height) {
    uint8_t* const row = picture.row(static_cast<int>(info.output_scanline));
    JSAMPROW target = cmyk ? reader.cmyk_row.data() : row;
    jpeg_read_scanlines(&info, &target, 1);
    if (cmyk) cmyk_to_rgb(reader.cmyk_row, info.saw_Adobe_marker, row);
  }
}

void read_jpeg(JpegReader& reader, std::span<const std::byte> file) {
  jpeg_decompress_struct& info = reader.info;
  jpeg_create_decompress(&info);
  info.progress = &reader.progress;
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_save_markers(&info, JPEG_APP0 + 1, 0xFFFF);
  jpeg_read_header(&info, TRUE);
  require_size(info.image_height, info.image_width);
  read_orientation(reader);
  choose_colours(info);
  jpeg_start_decompress(&info);
  reader.out.picture = Picture(static_cast<int>(info.output_height), static_cast<int>(info.output_width),
                               info.out_color_space == JCS_GRAYSCALE ? 1 : 3);
  read_rows(reader);
  jpeg_finish_decompress(&info);
}

}  // namespace

RawPicture decode_jpeg(std::span<const std::byte> file) {
  JpegReader reader;
  reader.info.err = jpeg_std_error(&reader.errors);
  reader.info.client_data = &reader;
  reader.errors.error_exit = on_error;
  reader.errors.emit_message = on_message;
  reader.progress.progress_monitor = on_progress;
  struct Release {
    jpeg_decompress_struct& info;
    ~Release() { jpeg_destroy_decompress(&info); }
  } const release{reader.info};
  if (setjmp(reader.failed) != 0) throw DataError(std::string("damaged JPEG: ") + reader.message);
  read_jpeg(reader, file);
  return std::move(reader.out);
}

}  // namespace dtopp::data

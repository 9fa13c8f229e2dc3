#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <jerror.h>
#include <jpeglib.h>
#include <png.h>
#include <webp/decode.h>
#include <webp/demux.h>

#include "dtopp/base/errors.h"
#include "dtopp/data/images/picture.h"

// jerror.h must follow jpeglib.h.

namespace dtopp::data {
namespace {

// A decoder of one format returns it; decode_picture() applies the orientation.
struct RawPicture {
  Picture picture;      // gray or RGB, as stored
  int orientation = 1;  // the orientation in the Exif data, 1 to 8
};

// A big-endian number of `size` bytes, or a little-endian one; nullopt if the file has fewer.
std::optional<uint64_t> number_at(std::span<const std::byte> file, size_t at, size_t size,
                                  bool little_endian = false) {
  if (at > file.size() || size > file.size() - at) return std::nullopt;
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i)
    value = value << 8 | static_cast<uint64_t>(file[at + (little_endian ? size - 1 - i : i)]);
  return value;
}

// The markers of a frame, which has the size: SOF0 to SOF15 without DHT, JPG and DAC.
bool begins_frame(uint64_t marker) {
  return marker >= 0xFFC0 && marker <= 0xFFCF && marker != 0xFFC4 && marker != 0xFFC8 && marker != 0xFFCC;
}

std::optional<uint64_t> jpeg_pixels(std::span<const std::byte> file) {
  for (size_t at = 2;;) {  // after the marker of the start
    const auto marker = number_at(file, at, 2), length = number_at(file, at + 2, 2);
    if (!marker || !length || *marker < 0xFF00) return std::nullopt;
    if (*marker == 0xFFFF) {  // a fill byte
      ++at;
      continue;
    }
    if (begins_frame(*marker)) {
      const auto height = number_at(file, at + 5, 2), width = number_at(file, at + 7, 2);
      if (!height || !width) return std::nullopt;
      return *height * *width;
    }
    at += 2 + *length;
  }
}

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

void choose_colors(jpeg_decompress_struct& info) {
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
  choose_colors(info);
  jpeg_start_decompress(&info);
  reader.out.picture = Picture(static_cast<int>(info.output_height), static_cast<int>(info.output_width),
                               info.out_color_space == JCS_GRAYSCALE ? 1 : 3);
  read_rows(reader);
  jpeg_finish_decompress(&info);
}

// Throws DataError as decode_picture() does, like the other decoders.
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
  if (setjmp(reader.failed) != 0) throw DataError("damaged JPEG: ", reader.message);
  read_jpeg(reader, file);
  return std::move(reader.out);
}

// The state of libpng and of this decoder, in one object that outlives a longjmp out of the library.
struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::byte> file;  // what is not read yet
  size_t file_bytes = 0;
  char message[200] = {};
  RawPicture out;
  std::vector<png_bytep> rows;

  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void fail_png(png_structp png, png_const_charp message) {
  auto& reader = *static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader.message, sizeof(reader.message), "%s", message);
  png_longjmp(png, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

// libpng allocates the length that a chunk claims, which may be 2 GB, before it reads the chunk. Without the
// memory it skips the chunk. Rows and tables need less than the constant.
png_voidp allocate(png_structp png, png_alloc_size_t bytes) {
  constexpr size_t kMostBeyondFile = size_t{1} << 23;
  const auto& reader = *static_cast<PngReader*>(png_get_mem_ptr(png));
  return bytes <= std::max(reader.file_bytes, kMostBeyondFile) ? std::malloc(bytes) : nullptr;
}

void release(png_structp, png_voidp memory) { std::free(memory); }

void take_bytes(png_structp png, png_bytep out, size_t count) {
  auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
  if (count > reader.file.size()) png_error(png, "ends early");
  std::memcpy(out, reader.file.data(), count);
  reader.file = reader.file.subspan(count);
}

// Converts every stored format to eight bits of gray, or of red, green and blue.
void choose_transforms(png_structp png, png_infop info) {
  const int colors = png_get_color_type(png, info);
  if (colors == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (colors == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
  png_set_strip_16(png);
  png_set_strip_alpha(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
}

void read_exif(PngReader& reader) {
  png_bytep exif = nullptr;
  png_uint_32 size = 0;
  if (png_get_eXIf_1(reader.png, reader.info, &size, &exif) != 0)
    reader.out.orientation = exif_orientation(std::as_bytes(std::span(exif, size)));
}

void read_png(PngReader& reader) {
  png_structp png = reader.png;
  png_infop info = reader.info;
  png_set_read_fn(png, &reader, take_bytes);
  png_set_user_limits(png, kMaxSide, kMaxSide);
  png_read_info(png, info);
  require_size(png_get_image_height(png, info), png_get_image_width(png, info));
  choose_transforms(png, info);
  const int channels = png_get_channels(png, info);
  Picture& picture = reader.out.picture;
  picture = Picture(static_cast<int>(png_get_image_height(png, info)),
                    static_cast<int>(png_get_image_width(png, info)), channels);
  if (png_get_rowbytes(png, info) != picture.row_bytes()) png_error(png, "rows of an unexpected length");
  reader.rows.resize(static_cast<size_t>(picture.height));
  for (int y = 0; y < picture.height; ++y) reader.rows[static_cast<size_t>(y)] = picture.row(y);
  png_read_image(png, reader.rows.data());
  png_read_end(png, info);
  read_exif(reader);
}

RawPicture decode_png(std::span<const std::byte> file) {
  PngReader reader;
  reader.file = file;
  reader.file_bytes = file.size();
  reader.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &reader, fail_png, ignore_warning, &reader,
                                        allocate, release);
  if (reader.png) reader.info = png_create_info_struct(reader.png);
  if (!reader.info) throw std::bad_alloc();
  if (setjmp(png_jmpbuf(reader.png)) != 0) throw DataError("damaged PNG: ", reader.message);
  read_png(reader);
  return std::move(reader.out);
}

[[noreturn]] void fail_webp() { throw DataError("damaged WebP"); }

// Decodes the first frame onto its canvas. Pixels outside the frame are black.
void decode_animation(const WebPData& data, Picture& picture) {
  WebPAnimDecoderOptions options;
  if (WebPAnimDecoderOptionsInit(&options) == 0) throw std::bad_alloc();
  options.use_threads = 0;
  const std::unique_ptr<WebPAnimDecoder, decltype([](auto* d) { WebPAnimDecoderDelete(d); })> decoder(
      WebPAnimDecoderNew(&data, &options));
  uint8_t* rgba = nullptr;
  int time = 0;
  if (!decoder || WebPAnimDecoderGetNext(decoder.get(), &rgba, &time) == 0) fail_webp();
  const size_t pixels = picture.pixels.size() / 3;
  for (size_t i = 0; i < pixels; ++i) std::memcpy(picture.pixels.data() + 3 * i, rgba + 4 * i, 3);
}

int read_webp_orientation(const WebPDemuxer* demuxer) {
  WebPChunkIterator chunk;
  int orientation = 1;
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk) != 0)
    orientation = exif_orientation(std::as_bytes(std::span(chunk.chunk.bytes, chunk.chunk.size)));
  WebPDemuxReleaseChunkIterator(&chunk);
  return orientation;
}

RawPicture decode_webp(std::span<const std::byte> file) {
  const WebPData data{reinterpret_cast<const uint8_t*>(file.data()), file.size()};
  // Null also if the file is truncated.
  const std::unique_ptr<WebPDemuxer, decltype([](auto* d) { WebPDemuxDelete(d); })> demuxer(WebPDemux(&data));
  if (!demuxer) fail_webp();
  const auto height = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT);
  const auto width = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH);
  require_size(height, width);
  RawPicture raw;
  raw.picture = Picture(static_cast<int>(height), static_cast<int>(width), 3);
  raw.orientation = read_webp_orientation(demuxer.get());
  if ((WebPDemuxGetI(demuxer.get(), WEBP_FF_FORMAT_FLAGS) & ANIMATION_FLAG) != 0) {
    decode_animation(data, raw.picture);
  } else {
    WebPBitstreamFeatures features;
    if (WebPGetFeatures(data.bytes, data.size, &features) != VP8_STATUS_OK ||
        features.width != raw.picture.width || features.height != raw.picture.height ||
        !WebPDecodeRGBInto(data.bytes, data.size, raw.picture.pixels.data(), raw.picture.pixels.size(),
                           static_cast<int>(raw.picture.row_bytes())))
      fail_webp();
  }
  return raw;
}

PictureFormat format_of(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.empty()) throw DataError("is empty");
  if (text.starts_with("\xff\xd8")) return PictureFormat::kJpeg;
  if (text.starts_with("\x89PNG\r\n\x1a\n")) return PictureFormat::kPng;
  if (text.starts_with("RIFF") && text.substr(0, 12).ends_with("WEBP")) return PictureFormat::kWebp;
  throw DataError("is neither JPEG nor PNG nor WebP");
}

Picture gray_to_rgb(const Picture& gray) {
  Picture rgb(gray.height, gray.width, 3);
  for (size_t i = 0; i < gray.pixels.size(); ++i) std::fill_n(rgb.pixels.data() + 3 * i, 3, gray.pixels[i]);
  return rgb;
}

// Computes ITU-R 601-2 luma with Pillow's fixed-point weights.
Picture rgb_to_gray(const Picture& rgb) {
  Picture gray(rgb.height, rgb.width, 1);
  for (size_t i = 0; i < gray.pixels.size(); ++i) {
    const uint8_t* pixel = rgb.pixels.data() + 3 * i;
    gray.pixels[i] =
        static_cast<uint8_t>((pixel[0] * 19595U + pixel[1] * 38470U + pixel[2] * 7471U + 0x8000U) >> 16);
  }
  return gray;
}

}  // namespace

int exif_orientation(std::span<const std::byte> exif) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  constexpr uint64_t kMagic = 42, kOrientationTag = 0x0112, kShort = 3, kEntryBytes = 12;
  const auto text = [&] { return std::string_view(reinterpret_cast<const char*>(exif.data()), exif.size()); };
  if (text().starts_with(kPrefix)) exif = exif.subspan(kPrefix.size());
  const bool little_endian = text().starts_with("II");
  const auto number = [&](size_t at, size_t size) { return number_at(exif, at, size, little_endian); };
  if ((!little_endian && !text().starts_with("MM")) || number(2, 2) != kMagic) return 1;
  const uint64_t directory = number(4, 4).value_or(exif.size());
  const uint64_t entries = number(directory, 2).value_or(0);
  for (uint64_t i = 0; i < entries; ++i) {
    // Its tag, type, number of values and, in four bytes, the value.
    const uint64_t entry = directory + 2 + kEntryBytes * i;
    if (entry + kEntryBytes > exif.size()) return 1;
    if (number(entry, 2) != kOrientationTag || number(entry + 2, 2) != kShort) continue;
    const uint64_t orientation = *number(entry + 8, 2);
    return orientation >= 1 && orientation <= 8 ? static_cast<int>(orientation) : 1;
  }
  return 1;
}

Picture turn_upright(Picture picture, int orientation) {
  if (orientation == 1) return picture;
  // `swap`: rows and columns are exchanged. `from_bottom`, `from_right`: the upright row or column counts
  // from the far end.
  const bool swap = orientation >= 5;
  const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  const int height = swap ? picture.width : picture.height, width = swap ? picture.height : picture.width;
  Picture turned(height, width, picture.channels);
  const auto channels = static_cast<size_t>(picture.channels);
  for (int y = 0; y < height; ++y) {
    uint8_t* out = turned.row(y);
    const int v = from_bottom ? height - 1 - y : y;
    for (int x = 0; x < width; ++x, out += channels) {
      const int h = from_right ? width - 1 - x : x;
      const uint8_t* in = picture.row(swap ? h : v) + static_cast<size_t>(swap ? v : h) * channels;
      std::memcpy(out, in, channels);
    }
  }
  return turned;
}

std::optional<uint64_t> declared_pixels(std::span<const std::byte> beginning) {
  const std::string_view text(reinterpret_cast<const char*>(beginning.data()), beginning.size());
  if (text.starts_with("\xff\xd8")) return jpeg_pixels(beginning);
  if (text.starts_with("\x89PNG\r\n\x1a\n"))
    return number_at(beginning, 16, 4).value_or(0) * number_at(beginning, 20, 4).value_or(0);
  int width = 0, height = 0;
  if (text.starts_with("RIFF") &&
      WebPGetInfo(reinterpret_cast<const uint8_t*>(beginning.data()), beginning.size(), &width, &height) != 0)
    return static_cast<uint64_t>(width) * static_cast<uint64_t>(height);
  return 0;
}

void require_size(uint64_t height, uint64_t width) {
  if (height == 0 || width == 0) throw DataError("has no pixels");
  if (height > kMaxSide || width > kMaxSide || height * width > kMaxPixels)
    throw DataError("claims ", width, " x ", height, " pixels, more than the ", kMaxPixels, " allowed");
}

DecodedPicture decode_picture(std::span<const std::byte> file, int channels) {
  const PictureFormat format = format_of(file);
  RawPicture raw = format == PictureFormat::kJpeg  ? decode_jpeg(file)
                   : format == PictureFormat::kPng ? decode_png(file)
                                                   : decode_webp(file);
  Picture picture = std::move(raw.picture);
  if (picture.channels != channels) picture = channels == 3 ? gray_to_rgb(picture) : rgb_to_gray(picture);
  return {turn_upright(std::move(picture), raw.orientation), format, raw.orientation != 1};
}

}  // namespace dtopp::data

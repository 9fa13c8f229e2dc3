#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <png.h>

#include "dtopp/base/errors.h"
#include "dtopp/data/image_codec/decoders.h"
#include "dtopp/data/image_codec/orientation.h"

namespace dtopp::data {
namespace {

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

// Converts every stored format to eight bits of grey, or of red, green and blue.
void choose_transforms(png_structp png, png_infop info) {
  const int colours = png_get_color_type(png, info);
  if (colours == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (colours == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
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

}  // namespace

RawPicture decode_png(std::span<const std::byte> file) {
  PngReader reader;
  reader.file = file;
  reader.file_bytes = file.size();
  reader.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &reader, fail_png, ignore_warning, &reader,
                                        allocate, release);
  if (reader.png) reader.info = png_create_info_struct(reader.png);
  if (!reader.info) throw std::bad_alloc();
  if (setjmp(png_jmpbuf(reader.png)) != 0) throw DataError(std::string("damaged PNG: ") + reader.message);
  read_png(reader);
  return std::move(reader.out);
}

}  // namespace dtopp::data

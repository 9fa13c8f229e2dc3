#include "dtopp/data/image_codec/encode_png.h"

#include <csetjmp>
#include <new>
#include <stdexcept>

#include <png.h>

namespace dtopp::data {
namespace {

// The state of libpng in one object that outlives a longjmp out of the library.
struct PngWriter {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png != nullptr ? png_create_info_struct(png) : nullptr;
  std::string out;

  ~PngWriter() { png_destroy_write_struct(&png, &info); }
};

void append_bytes(png_structp png, png_bytep bytes, size_t count) {
  static_cast<PngWriter*>(png_get_io_ptr(png))->out.append(reinterpret_cast<const char*>(bytes), count);
}

void write_png(PngWriter& writer, const Picture& picture) {
  png_structp png = writer.png;
  png_set_write_fn(png, &writer, append_bytes, nullptr);
  png_set_compression_level(png, 0);
  png_set_filter(png, PNG_FILTER_TYPE_BASE, PNG_FILTER_NONE);
  png_set_IHDR(png, writer.info, static_cast<png_uint_32>(picture.width),
               static_cast<png_uint_32>(picture.height), 8,
               picture.channels == 1 ? PNG_COLOR_TYPE_GRAY : PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, writer.info);
  for (int y = 0; y < picture.height; ++y) png_write_row(png, picture.row(y));
  png_write_end(png, writer.info);
}

}  // namespace

std::string encode_png(const Picture& picture) {
  PngWriter writer;
  if (writer.info == nullptr) throw std::bad_alloc();
  // Enough for the pixels and their framing: append_bytes() must not throw through libpng, which is C.
  const size_t rows = static_cast<size_t>(picture.height) * (picture.row_bytes() + 1);
  writer.out.reserve(rows + rows / 64 + 4096);
  if (setjmp(png_jmpbuf(writer.png)) != 0) throw std::invalid_argument("encode_png: not a valid picture");
  write_png(writer, picture);
  return std::move(writer.out);
}

}  // namespace dtopp::data

#include "dtopp/data/images/picture.h"

#include <csetjmp>
#include <cstring>
#include <stdexcept>

#include <png.h>

namespace dtopp::data {
void to_planes(const Picture& picture, std::span<uint8_t> out) {
  const auto channels = static_cast<size_t>(picture.channels);
  const size_t size = out.size() / channels, whole = size / 8 * 8;
  for (size_t c = 0; c < channels; ++c) {
    const uint8_t* level = picture.pixels.data() + c;
    uint8_t* plane = out.data() + c * size;
    // Process eight pixels per iteration, with a single store.
    for (size_t i = 0; i < whole; i += 8, level += 8 * channels) {
      uint64_t levels = 0;
      for (size_t j = 0; j < 8; ++j) levels |= static_cast<uint64_t>(level[j * channels]) << (8 * j);
      std::memcpy(plane + i, &levels, 8);
    }
    for (size_t i = whole; i < size; ++i, level += channels) plane[i] = *level;
  }
}

Picture from_planes(std::span<const std::byte> planes, int height, int width, int channels) {
  Picture picture(height, width, channels);
  const auto step = static_cast<size_t>(channels);
  const size_t size = planes.size() / step;
  for (size_t i = 0; i < size; ++i) {
    for (size_t c = 0; c < step; ++c)
      picture.pixels[i * step + c] = static_cast<uint8_t>(planes[c * size + i]);
  }
  return picture;
}

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

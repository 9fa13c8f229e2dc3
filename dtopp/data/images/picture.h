// Holds a picture in memory. Decodes and encodes picture files, and draws grids of pictures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace dtopp::data {

// Leaves new elements of a vector uninitialized. The code that creates the vector must fill it.
template <class T>
struct UnfilledAllocator : std::allocator<T> {
  template <class U>
  struct rebind {  // NOLINT(readability-identifier-naming): the standard's name
    using other = UnfilledAllocator<U>;
  };
  template <class U>
  void construct(U* address) noexcept {
    ::new (static_cast<void*>(address)) U;
  }
};

using Pixels = std::vector<uint8_t, UnfilledAllocator<uint8_t>>;

struct Picture {
  int height = 0;
  int width = 0;
  int channels = 0;  // 1: gray, 3: red, green, blue
  Pixels pixels;     // [height, width, channels]

  Picture() = default;
  Picture(int height, int width, int channels)
      : height(height),
        width(width),
        channels(channels),
        pixels(static_cast<size_t>(height) * static_cast<size_t>(width) * static_cast<size_t>(channels)) {}
  size_t row_bytes() const { return static_cast<size_t>(width) * static_cast<size_t>(channels); }
  const uint8_t* row(int y) const { return pixels.data() + static_cast<size_t>(y) * row_bytes(); }
  uint8_t* row(int y) { return pixels.data() + static_cast<size_t>(y) * row_bytes(); }
};

// Limits of a picture: at most 300 MB of red, green and blue. Larger pictures are rejected before any
// allocation.
inline constexpr uint64_t kMaxPixels = 100'000'000;
inline constexpr uint64_t kMaxSide = 65'535;

// Throws DataError if a side is 0 or exceeds kMaxSide, or if the pixels exceed kMaxPixels. If the picture is
// too large, the message states the declared size.
void require_size(uint64_t height, uint64_t width);

// Returns the Exif orientation, from 1 (upright) to 8; 1 if the data are damaged or hold no orientation.
// `exif` is a TIFF header with its directories, with or without "Exif\0\0" before it.
int exif_orientation(std::span<const std::byte> exif);

// Returns the picture, turned and mirrored from `orientation` (1 to 8) to upright.
Picture turn_upright(Picture picture, int orientation);

// Returns the pixels that the header of a JPEG, PNG or WebP file declares. `beginning` may lack the rest of
// the file. Returns 0 if no picture begins so, and nullopt if the header of a JPEG lies further back.
std::optional<uint64_t> declared_pixels(std::span<const std::byte> beginning);

enum class PictureFormat { kJpeg, kPng, kWebp };

struct DecodedPicture {
  Picture picture;
  PictureFormat format;
  bool was_turned = false;  // the file's orientation was not upright
};

// Decodes a JPEG, PNG or WebP file to an upright picture with 1 or 3 channels.
//
// The result is that of Pillow's ImageOps.exif_transpose, followed by convert("RGB") or convert("L"). The
// orientation in the file's Exif data is applied. An alpha channel is dropped. Palette indices become
// colors. A channel of 16 bits keeps its high eight. CMYK is converted to RGB by multiplication. An
// animation yields its first frame. Color profiles and gamma are ignored.
//
// Throws DataError if the file is not a picture, is damaged or
// truncated, or has more than kMaxPixels. The message holds only the cause; the caller adds the name. Safe to
// call from many threads.
DecodedPicture decode_picture(std::span<const std::byte> file, int channels);

// Writes the picture to `out` as [channels, height, width]. Precondition: out.size() ==
// picture.pixels.size().
void to_planes(const Picture& picture, std::span<uint8_t> out);
// Converts `planes` [channels, height, width] to a picture. Precondition: planes.size() is their product.
Picture from_planes(std::span<const std::byte> planes, int height, int width, int channels);

// Returns a PNG file of 8 bits per channel without compression, which is fast to write and to read.
// Precondition: the picture has 1 or 3 channels and at least one pixel.
std::string encode_png(const Picture& picture);

struct GridCell {
  Picture picture;
  std::string label;  // cut to the cell's width; a character that is not printable ASCII becomes '?'
};

// Returns the grid as an RGB picture on white. The pictures have 1 or 3 channels and are enlarged by the
// smallest whole number that makes them at least 64 pixels wide. If no cell has a label, the grid has no
// space for labels. Rows may differ in length. Throws std::invalid_argument if there is no picture or if
// sizes differ.
Picture draw_grid(const std::vector<std::vector<GridCell>>& rows);

// Returns the size of a labeled grid of pictures of size height x width.
struct GridExtent {
  int64_t height, width;  // in pixels
};
GridExtent grid_extent(int64_t rows, int64_t columns, int64_t height, int64_t width);

}  // namespace dtopp::data

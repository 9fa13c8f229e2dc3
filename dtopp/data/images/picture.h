// Holds a picture in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
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

// Writes the picture to `out` as [channels, height, width]. Precondition: out.size() ==
// picture.pixels.size().
void to_planes(const Picture& picture, std::span<uint8_t> out);
// Converts `planes` [channels, height, width] to a picture. Precondition: planes.size() is their product.
Picture from_planes(std::span<const std::byte> planes, int height, int width, int channels);

// Returns a PNG file of 8 bits per channel without compression, which is fast to write and to read.
// Precondition: the picture has 1 or 3 channels and at least one pixel.
std::string encode_png(const Picture& picture);

// Draws a grid of pictures for display, with an optional line of text under each.

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

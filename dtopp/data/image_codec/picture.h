// A picture in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

namespace dtopp {

// Leaves new elements as they are: whoever makes a vector of them fills it.
template <class T>
struct UnfilledAllocator : std::allocator<T> {
  template <class U>
  struct rebind {  // NOLINT(readability-identifier-naming): the standard's name
    using other = UnfilledAllocator<U>;
  };
  template <class U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
};

using Pixels = std::vector<uint8_t, UnfilledAllocator<uint8_t>>;

struct Picture {
  int height = 0;
  int width = 0;
  int channels = 0;  // 1: grey, 3: red, green, blue
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

// Larger pictures are refused before anything is allocated for them: at most 300 MB of red, green and blue.
inline constexpr uint64_t kMaxPixels = 100'000'000;
inline constexpr uint64_t kMaxSide = 65'535;

// As [channels, height, width] into `out`, which has room for just that.
void to_planes(const Picture& picture, std::span<uint8_t> out);
// The other way round, of as many bytes.
Picture from_planes(std::span<const std::byte> planes, int height, int width, int channels);

}  // namespace dtopp

// A picture in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dtopp {

struct Picture {
  int height = 0;
  int width = 0;
  int channels = 0;             // 1: grey, 3: red, green, blue
  std::vector<uint8_t> pixels;  // [height, width, channels]

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
inline void to_planes(const Picture& picture, std::span<uint8_t> out) {
  const auto channels = static_cast<size_t>(picture.channels);
  const size_t size = out.size() / channels;
  for (size_t c = 0; c < channels; ++c) {
    for (size_t i = 0; i < size; ++i) out[c * size + i] = picture.pixels[i * channels + c];
  }
}

}  // namespace dtopp

#include "dtopp/data/image_codec/picture.h"

#include <cstring>

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

}  // namespace dtopp::data

#include "dtopp/data/image_codec/picture_size.h"

#include <string_view>

#include <webp/decode.h>

namespace dtopp::data {
namespace {

// A big-endian number of `size` bytes; nullopt if the file has fewer.
std::optional<uint64_t> number_at(std::span<const std::byte> file, size_t at, size_t size) {
  if (at > file.size() || size > file.size() - at) return std::nullopt;
  uint64_t value = 0;
  for (const std::byte byte : file.subspan(at, size)) value = value << 8 | static_cast<uint64_t>(byte);
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

}  // namespace

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

}  // namespace dtopp::data

#include "dtopp/data/image_codec/decode_picture.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "dtopp/data/image_codec/decoders.h"
#include "dtopp/data/image_codec/orientation.h"

namespace dtopp::data {
namespace {

PictureFormat format_of(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.empty()) throw DataError("is empty");
  if (text.starts_with("\xff\xd8")) return PictureFormat::kJpeg;
  if (text.starts_with("\x89PNG\r\n\x1a\n")) return PictureFormat::kPng;
  if (text.starts_with("RIFF") && text.substr(0, 12).ends_with("WEBP")) return PictureFormat::kWebp;
  throw DataError("is neither JPEG nor PNG nor WebP");
}

RawPicture decode_format(std::span<const std::byte> file, PictureFormat format) {
  switch (format) {
    case PictureFormat::kJpeg:
      return decode_jpeg(file);
    case PictureFormat::kPng:
      return decode_png(file);
    case PictureFormat::kWebp:
      break;
  }
  return decode_webp(file);
}

Picture grey_to_rgb(const Picture& grey) {
  Picture rgb(grey.height, grey.width, 3);
  for (size_t i = 0; i < grey.pixels.size(); ++i) std::fill_n(rgb.pixels.data() + 3 * i, 3, grey.pixels[i]);
  return rgb;
}

// Computes ITU-R 601-2 luma with Pillow's fixed-point weights.
Picture rgb_to_grey(const Picture& rgb) {
  Picture grey(rgb.height, rgb.width, 1);
  for (size_t i = 0; i < grey.pixels.size(); ++i) {
    const uint8_t* pixel = rgb.pixels.data() + 3 * i;
    grey.pixels[i] =
        static_cast<uint8_t>((pixel[0] * 19595U + pixel[1] * 38470U + pixel[2] * 7471U + 0x8000U) >> 16);
  }
  return grey;
}

}  // namespace

void require_size(uint64_t height, uint64_t width) {
  if (height == 0 || width == 0) throw DataError("has no pixels");
  if (height > kMaxSide || width > kMaxSide || height * width > kMaxPixels)
    throw DataError("claims " + std::to_string(width) + " x " + std::to_string(height) +
                    " pixels, more than the " + std::to_string(kMaxPixels) + " allowed");
}

DecodedPicture decode_picture(std::span<const std::byte> file, int channels) {
  const PictureFormat format = format_of(file);
  RawPicture raw = decode_format(file, format);
  Picture picture = std::move(raw.picture);
  if (picture.channels != channels) picture = channels == 3 ? grey_to_rgb(picture) : rgb_to_grey(picture);
  return {turn_upright(std::move(picture), raw.orientation), format, raw.orientation != 1};
}

}  // namespace dtopp::data

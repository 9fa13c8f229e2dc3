// Decodes JPEG, PNG and WebP files in memory to upright pictures with the requested channels.
//
// The result is that of Pillow's ImageOps.exif_transpose, followed by convert("RGB") or convert("L"). The
// orientation in the file's Exif data is applied. An alpha channel is dropped. Palette indices become
// colours. A channel of 16 bits keeps its high eight. CMYK is converted to RGB by multiplication. An
// animation yields its first frame. Colour profiles and gamma are ignored.
#pragma once

#include <cstddef>
#include <span>

#include "dtopp/base/errors.h"
#include "dtopp/data/image_codec/picture.h"

namespace dtopp::data {

enum class PictureFormat { kJpeg, kPng, kWebp };

struct DecodedPicture {
  Picture picture;
  PictureFormat format;
  bool was_turned = false;  // the file's orientation was not upright
};

// Decodes a picture; `channels` is 1 or 3. Throws DataError if the file is not a picture, is damaged or
// truncated, or has more than kMaxPixels. The message holds only the cause; the caller adds the name. Safe to
// call from many threads.
DecodedPicture decode_picture(std::span<const std::byte> file, int channels);

}  // namespace dtopp::data

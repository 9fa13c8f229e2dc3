// Decodes JPEG, PNG and WebP files in memory to upright pictures with the requested channels.
//
// The result is that of Pillow's ImageOps.exif_transpose, followed by convert("RGB") or convert("L"). The
// orientation in the file's Exif data is applied. An alpha channel is dropped. Palette indices become
// colors. A channel of 16 bits keeps its high eight. CMYK is converted to RGB by multiplication. An
// animation yields its first frame. Color profiles and gamma are ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "dtopp/data/images/picture.h"

namespace dtopp::data {

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

// Decodes a picture; `channels` is 1 or 3. Throws DataError if the file is not a picture, is damaged or
// truncated, or has more than kMaxPixels. The message holds only the cause; the caller adds the name. Safe to
// call from many threads.
DecodedPicture decode_picture(std::span<const std::byte> file, int channels);

}  // namespace dtopp::data

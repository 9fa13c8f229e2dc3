#include "dtopp/data/image_codec/orientation.h"

#include <cstring>
#include <string_view>
#include <utility>

#include "dtopp/base/byte_reader.h"

namespace dtopp::data {
namespace {

constexpr uint16_t kOrientationTag = 0x0112;
constexpr uint16_t kShort = 3;

// Reads the integers of a TIFF file in either byte order.
class TiffReader {
 public:
  explicit TiffReader(std::span<const std::byte> bytes) : bytes_(bytes), reader_(bytes, "Exif") {
    const auto order = reader_.take_text(2);
    if (order != "II" && order != "MM") reader_.fail("neither II nor MM");
    swap_ = order == "MM";
    if (u16() != 42) reader_.fail("not TIFF");
  }
  uint16_t u16() { return swap_ ? __builtin_bswap16(reader_.read<uint16_t>()) : reader_.read<uint16_t>(); }
  uint32_t u32() { return swap_ ? __builtin_bswap32(reader_.read<uint32_t>()) : reader_.read<uint32_t>(); }
  void seek(uint64_t offset) {
    reader_ = ByteReader(bytes_, "Exif");
    reader_.take(offset);
  }

 private:
  std::span<const std::byte> bytes_;
  ByteReader reader_;
  bool swap_ = false;
};

int read_orientation(std::span<const std::byte> tiff) {
  TiffReader reader(tiff);
  reader.seek(reader.u32());
  const int entries = reader.u16();
  for (int i = 0; i < entries; ++i) {
    const uint16_t tag = reader.u16(), type = reader.u16();
    reader.u32();  // number of values
    const uint16_t value = reader.u16();
    reader.u16();  // the other half of the four-byte value field
    if (tag == kOrientationTag && type == kShort) return value;
  }
  return 1;
}

}  // namespace

int exif_orientation(std::span<const std::byte> exif) {
  constexpr std::string_view kPrefix("Exif\0\0", 6);
  const std::string_view text(reinterpret_cast<const char*>(exif.data()), exif.size());
  if (text.starts_with(kPrefix)) exif = exif.subspan(kPrefix.size());
  try {
    const int orientation = read_orientation(exif);
    return orientation >= 1 && orientation <= 8 ? orientation : 1;
  } catch (const DataError&) {
    return 1;
  }
}

Picture turn_upright(Picture picture, int orientation) {
  if (orientation == 1) return picture;
  // `swap`: rows and columns are exchanged. `from_bottom`, `from_right`: the upright row or column counts
  // from the far end.
  const bool swap = orientation >= 5;
  const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  const int height = swap ? picture.width : picture.height, width = swap ? picture.height : picture.width;
  Picture turned(height, width, picture.channels);
  const auto channels = static_cast<size_t>(picture.channels);
  for (int y = 0; y < height; ++y) {
    uint8_t* out = turned.row(y);
    const int v = from_bottom ? height - 1 - y : y;
    for (int x = 0; x < width; ++x, out += channels) {
      const int h = from_right ? width - 1 - x : x;
      const uint8_t* in = picture.row(swap ? h : v) + static_cast<size_t>(swap ? v : h) * channels;
      std::memcpy(out, in, channels);
    }
  }
  return turned;
}

}  // namespace dtopp::data

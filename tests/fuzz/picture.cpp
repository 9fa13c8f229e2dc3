// JPEG, PNG and WebP files. A decoded picture has the size that its header declares.
#include "dtopp/data/images/picture.h"

#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const int channels = input.choice(2) == 0 ? 1 : 3;
  const auto declared = data::declared_pixels(input.bytes());
  // Larger ones take time, which is not the subject here; the largest are refused at once.
  constexpr uint64_t kMostPixels = uint64_t{1} << 20;
  if (declared.value_or(0) > kMostPixels && *declared <= data::kMaxPixels) return 0;
  fuzz::accepts([&] {
    const data::DecodedPicture decoded = data::decode_picture(input.bytes(), channels);
    const data::Picture& picture = decoded.picture;
    const auto pixels = static_cast<uint64_t>(picture.height) * static_cast<uint64_t>(picture.width);
    fuzz::require(picture.channels == channels, "a picture has the requested channels");
    fuzz::require(picture.pixels.size() == pixels * static_cast<uint64_t>(channels), "all pixels have bytes");
    fuzz::require(!declared || *declared == pixels, "a picture has the declared size");
    uint64_t sum = 0;
    for (const uint8_t value : picture.pixels) sum += value;  // reads every byte
    fuzz::require(sum <= 255 * picture.pixels.size(), "bytes are at most 255");
  });
  return 0;
}

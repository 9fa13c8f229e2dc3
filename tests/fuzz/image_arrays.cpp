// Pictures and latents as rows of .npy and .safetensors files.
#include "dtopp/data/images/image_source.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const bool npy = input.choice(2) == 0;
  const auto path = fuzz::write_scratch(npy ? "images.npy" : "images.safetensors", input.rest());
  if (npy)
    fuzz::accepts([&] {
      const TensorView array = data::read_npy_array(input.bytes(), "images.npy");
      fuzz::require(array.bytes.size() <= input.bytes().size(), "an array lies in its file");
    });
  fuzz::accepts([&] {
    const auto source = data::open_images(path);
    for (int samples = 0; samples < 20; ++samples) {
      const auto sample = source->next(/*load=*/true);
      if (!sample) break;
      fuzz::require(sample->image && sample->image->bytes.size() <= size, "a row lies in its file");
      fuzz::require(sample->row_bytes <= size, "the rows lie in their file");
    }
  });
  return 0;
}

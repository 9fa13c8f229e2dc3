// A shard of prepared images under facts of each kind, and its first samples.
#include <memory>

#include "dtopp/data/images/image_data.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  data::ImageFacts facts;
  facts.kind = static_cast<data::ImageKind>(input.choice(3));
  const size_t options = input.choice(8);
  facts.shape = {1, 2, 2};
  if ((options & 1) != 0) facts.classes = {"cat", "dog"};
  if ((options & 2) != 0) facts.text_size = facts.text_length = 2;
  facts.has_flipped = (options & 4) != 0;
  const auto path = fuzz::write_scratch("images.safetensors", input.rest());
  fuzz::accepts([&] {
    const data::ImageShard shard(path, std::make_shared<data::ImageFacts>(facts));
    std::vector<uint8_t> pixels(facts.shape.elements());
    std::vector<float> latent(facts.shape.elements()), text(4);
    for (uint64_t i = 0; i < std::min<uint64_t>(shard.images(), 4); ++i) {
      fuzz::accepts([&] { fuzz::require(shard.label(i) < 2, "a label names a class"); });
      fuzz::accepts([&] { fuzz::require(shard.text(i, text) <= 2, "a caption is at most the longest"); });
      fuzz::accepts([&] {
        if (facts.kind == data::ImageKind::kLatents)
          shard.latent(i, facts.has_flipped, latent);
        else
          shard.pixels(i, pixels);
      });
    }
  });
  return 0;
}

// A tar file of samples, plain or compressed. No member's name leads out of its folder.
#include "dtopp/data/image_preparation/image_source.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  constexpr std::array kNames = {"images.tar", "images.tar.gz", "images.tar.zst"};
  const auto path = fuzz::write_scratch(kNames[input.choice(kNames.size())], input.rest());
  uint64_t samples = 0;
  const bool whole = fuzz::accepts([&] {
    const auto source = data::open_images(path);
    while (const auto sample = source->next(/*load=*/true)) {
      ++samples;
      fuzz::require(sample->picture || sample->array || !sample->cause.empty(),
                    "a sample has data or a cause");
      fuzz::require(sample->folder != "..", "a folder is a plain name");
      for (const auto* member : {&sample->picture, &sample->array, &sample->number, &sample->json})
        if (*member) fuzz::require((*member)->path.empty(), "a member of an archive names no file");
    }
  });
  fuzz::accepts([&] {
    const uint64_t scanned = data::scan_images(path).samples;
    fuzz::require(!whole || scanned == samples, "a scan counts the samples");
  });
  return 0;
}

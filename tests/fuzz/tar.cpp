// A tar file of samples, plain or compressed. No member's name leads out of its folder.
#include "dtopp/data/images/image_source.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

static void require_loads(const data::RawMember& member) {
  fuzz::require(member.path.empty(), "a member of an archive names no file");
  const data::RawMember in_file{{}, fuzz::write_scratch("member", member.bytes)};
  fuzz::require(data::RawMember(member).load() == member.bytes, "a member loads its bytes");
  fuzz::require(data::RawMember(in_file).load() == member.bytes, "a member in a file loads its bytes");
  if (member.bytes.size() <= size_t{1} << 16)  // a file is read up to a limit
    fuzz::require(in_file.decoded_bytes() == member.decoded_bytes(), "both declare the same picture");
}

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
        if (*member) require_loads(**member);
    }
  });
  fuzz::accepts([&] {
    const uint64_t scanned = data::scan_images(path).samples;
    fuzz::require(!whole || scanned == samples, "a scan counts the samples");
  });
  return 0;
}

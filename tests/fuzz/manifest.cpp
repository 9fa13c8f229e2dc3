// manifest.json and the facts about tokens and images in it. A printed manifest parses to the same manifest.
#include "dtopp/base/manifest.h"

#include "dtopp/base/hash.h"
#include "dtopp/data/images/image_facts.h"
#include "dtopp/data/tokens/token_folder.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

// Ends the text as every manifest ends. Otherwise no changed input would pass the checksum.
static std::string with_checksum(std::string text) {
  const std::string key = "  \"xxh3_128\": \"";
  text.resize(std::min(text.size(), text.rfind(key)));
  return text + key + hash_bytes(std::as_bytes(std::span(text))) + "\"\n}\n";
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::Input(data, size).rest();
  const std::string format = "dtopp checkpoint 1";
  Manifest manifest;
  fuzz::accepts([&] { parse_manifest(text, "manifest", format); });
  if (!fuzz::accepts([&] { manifest = parse_manifest(with_checksum(text), "manifest", format); })) return 0;
  for (const auto& [name, entry] : manifest.files)
    fuzz::require(name.find('/') == name.npos && name != "..", "files lie in the folder");
  fuzz::accepts([&] { data::read_facts(manifest, "manifest"); });
  fuzz::accepts([&] {
    const data::ImageFacts facts = data::read_image_facts(manifest, "manifest");
    fuzz::require(facts.shape.elements() <= uint64_t{1} << 48, "a shape has a bounded number of elements");
  });
  // The printer does not escape checksums; dtopp writes hexadecimal digits only.
  for (const auto& [name, entry] : manifest.files)
    if (entry.xxh3_128.find_first_not_of("0123456789abcdef") != std::string::npos) return 0;
  const Manifest again = parse_manifest(format_manifest(manifest), "manifest", format);
  fuzz::require(again.about == manifest.about && again.files == manifest.files,
                "a printed manifest is the same");
  return 0;
}

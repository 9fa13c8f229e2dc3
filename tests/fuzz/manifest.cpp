// manifest.json and the facts about tokens and images in it. A printed manifest parses to the same manifest.
#include "dtopp/base/manifest.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/data/text/token_file.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

static void require_same_tokens(const Manifest& manifest) {
  const data::TokenFacts facts = data::read_facts(manifest, "manifest");
  auto about = data::to_json(facts.documents, facts.tokens, facts.max_token);
  about["job"] = {{"tokenizer_hash", facts.tokenizer_hash}, {"end_of_text", facts.end_of_text}};
  const data::TokenFacts again = data::read_facts({manifest.format, dump_json(about), {}}, "manifest");
  fuzz::require(again.tokens == facts.tokens && again.max_token == facts.max_token,
                "printed facts are the same");
}

static void require_same_images(const Manifest& manifest) {
  const data::ImageFacts facts = data::read_image_facts(manifest, "manifest");
  fuzz::require(facts.shape.elements() <= uint64_t{1} << 48, "a shape has a bounded number of elements");
  auto about = data::to_json(facts);
  about["job"] = data::to_json(facts.job);
  const data::ImageFacts again = data::read_image_facts({manifest.format, dump_json(about), {}}, "manifest");
  fuzz::require(data::to_json(again) == data::to_json(facts), "printed facts are the same");
}

// A folder that holds one file, "a" with the text "abc".
static void verify_folder(const Manifest& manifest) {
  static const auto folder = fuzz::write_scratch("a", "abc").parent_path();
  fuzz::write_scratch(kManifestName, format_manifest(manifest));
  fuzz::require(begins_as_manifest(folder / kManifestName, manifest.format), "a manifest begins as one");
  fuzz::require(!begins_as_manifest(folder, manifest.format), "a folder does not");
  fuzz::require(!hash_of(manifest.files).empty(), "files have a checksum");
  fuzz::accepts([&] {
    data::require_finished(folder, data::image_folder_kind());
    verify_content(folder, read_manifest(folder, manifest.format).files);
    for (const auto& [name, entry] : manifest.files)
      fuzz::require(name == "a" && entry.size == 3, "a folder verifies if it holds the files");
  });
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = fuzz::Input(data, size).rest();
  const std::string format = "dtopp checkpoint 1";
  Manifest manifest;
  fuzz::accepts([&] { parse_manifest(text, "manifest", format); });
  if (!fuzz::accepts([&] { manifest = parse_manifest(fuzz::sealed(text), "manifest", format); })) return 0;
  for (const auto& [name, entry] : manifest.files)
    fuzz::require(name.find('/') == name.npos && name != "..", "files lie in the folder");
  fuzz::accepts([&] { require_same_tokens(manifest); });
  fuzz::accepts([&] { require_same_images(manifest); });
  // The printer does not escape checksums; dtopp writes hexadecimal digits only.
  for (const auto& [name, entry] : manifest.files)
    if (entry.xxh3_128.find_first_not_of("0123456789abcdef") != std::string::npos) return 0;
  const Manifest again = parse_manifest(format_manifest(manifest), "manifest", format);
  fuzz::require(again.about == manifest.about && again.files == manifest.files,
                "a printed manifest is the same");
  verify_folder(manifest);
  return 0;
}

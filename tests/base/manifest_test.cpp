#include "dtopp/base/manifest.h"

#include <fstream>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "tests/base/damage.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::manifest_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kFormat[] = "dtopp test 1";
constexpr char kHash[] = "99aa06d3014798d86001c324468d497f";  // hash of no bytes

std::string text_of(const ManifestFiles& files, const std::string& about = "") {
  return format_manifest({kFormat, about, files});
}

std::string read_error(const ScratchDirectory& scratch, const std::string& text) {
  std::ofstream(scratch / "manifest.json", std::ios::binary) << text;
  return error_of<DataError>([&] { read_manifest(scratch.path(), kFormat); });
}

TEST(Manifest, is_json_and_comes_back_as_it_was) {
  ScratchDirectory scratch;
  const ManifestFiles manifest = {{"a.safetensors", {uint64_t{1} << 62, kHash}}, {"ü \"b\"", {0, kHash}}};
  for (const auto& files : {manifest, ManifestFiles{}}) {
    write_file_atomically(scratch / "manifest.json", text_of(files));
    EXPECT_EQ(read_manifest(scratch.path(), kFormat).files, files);
  }
  const auto object = nlohmann::json::parse(text_of(manifest));
  EXPECT_EQ(object["files"]["a.safetensors"]["size"], uint64_t{1} << 62);
  EXPECT_EQ(object["files"]["a.safetensors"]["xxh3_128"], kHash);
}

TEST(Manifest, keeps_facts_about_the_content) {
  ScratchDirectory scratch;
  const std::string about = R"({"name":"a \"b\"","tokens":1099511627776})";
  std::ofstream(scratch / "manifest.json") << text_of({}, about);
  EXPECT_EQ(read_manifest(scratch.path(), kFormat).about, about);
  EXPECT_THAT(error_of<DataError>([&] { read_manifest(scratch.path(), "dtopp other 1"); }),
              HasSubstr("not of the format \"dtopp other 1\""));
}

TEST(Manifest, is_known_by_its_first_bytes) {
  ScratchDirectory scratch;
  const auto begins = [&](const std::string& text) {
    std::ofstream(scratch / "manifest.json", std::ios::binary) << text;
    return begins_as_manifest(scratch / "manifest.json", kFormat);
  };
  const std::string text = text_of({{"a", {3, kHash}}});
  for (const size_t size : {size_t{0}, size_t{5}, size_t{25}, text.size()})
    EXPECT_TRUE(begins(text.substr(0, size)));
  for (const char* other :
       {"{}", " ", R"({"format": "dtopp test 1"})", "{\n  \"format\": \"dtopp test 11\",\n"})
    EXPECT_FALSE(begins(other)) << other;
  EXPECT_FALSE(begins_as_manifest(scratch / "none", kFormat));
  EXPECT_FALSE(begins_as_manifest(scratch.path(), kFormat));
}

// Every reader of a manifest relies on this: checkpoints, prepared data, stored results, verified files.
TEST(Manifest, every_flipped_bit_cut_or_added_byte_of_it_and_its_files_is_found_and_named) {
  ScratchDirectory scratch;
  const std::string content = "sixteen bytes: a";
  const ManifestFiles files = {{"a", {content.size(), hash_bytes(std::as_bytes(std::span(content)))}}};
  const std::map<std::string, std::string> all = {{"a", content},
                                                  {"manifest.json", text_of(files, R"({"tokens":7})")}};
  for (const auto& [name, bytes] : all) write_file_atomically(scratch / name, bytes);
  for (const auto& [name, bytes] : all) {
    const auto expect_named = [&, &name = name](const std::string& damaged) {
      std::ofstream(scratch / name, std::ios::binary) << damaged;
      const auto message = error_of<DataError>(
          [&] { verify_content(scratch.path(), read_manifest(scratch.path(), kFormat).files); });
      ASSERT_THAT(message, StartsWith((scratch / name).string() + ": ")) << damaged;
    };
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) expect_named(with_flipped_bit(bytes, bit));
    for (size_t size = 0; size < bytes.size(); ++size) expect_named(bytes.substr(0, size));
    for (const char more : {'\n', '\0'}) expect_named(bytes + more);
    std::ofstream(scratch / name, std::ios::binary) << bytes;
  }
}

// docs/reference/files.md promises that the last line is the checksum of the text above it.
TEST(Manifest, ends_with_the_checksum_of_the_text_above) {
  const auto text = text_of({{"a", {3, kHash}}});
  const auto line = text.rfind("  \"xxh3_128\"");
  const auto body = text.substr(0, line);
  EXPECT_EQ(
      text.substr(line),
      "  \"xxh3_128\": \"" + hash_bytes(std::as_bytes(std::span(body.data(), body.size()))) + "\"\n}\n");
}

// Names that lead out of the directory are refused even when the checksum is right.
TEST(Manifest, names_only_files_of_its_directory) {
  ScratchDirectory scratch;
  for (const auto& name : std::vector<std::string>{"../model.safetensors", "/etc/passwd", "a/b", "..", ".",
                                                   "", std::string("a\0b", 3)})
    EXPECT_THAT(read_error(scratch, text_of({{name, {1, kHash}}})),
                AllOf(StartsWith((scratch / "manifest.json").string()), HasSubstr("malformed entry")));
}

TEST(Manifest, is_refused_when_missing_cut_or_changed) {
  ScratchDirectory scratch;
  EXPECT_THAT(error_of<DataError>([&] { read_manifest(scratch.path(), kFormat); }),
              HasSubstr("manifest.json"));
  EXPECT_THAT(read_error(scratch, ""), HasSubstr("truncated"));
  auto text = text_of({{"a", {3, kHash}}});
  EXPECT_THAT(read_error(scratch, text.substr(1)), HasSubstr("its own checksum"));
  text[text.find("\"size\": 3") + 8] = '4';
  EXPECT_THAT(read_error(scratch, text), HasSubstr("its own checksum"));
}

TEST(Manifest, survives_random_bytes) {
  ScratchDirectory scratch;
  std::mt19937 generator(1);
  for (int i = 0; i < 500; ++i) {
    std::string text(generator() % 200, '\0');
    for (auto& byte : text) byte = static_cast<char>(generator());
    EXPECT_FALSE(read_error(scratch, text).empty());
  }
}

TEST(Manifest, tells_a_wrong_size_from_wrong_bytes) {
  ScratchDirectory scratch;
  write_file_atomically(scratch / "a", "abc");
  const auto path = (scratch / "a").string();
  const ManifestFiles right = {{"a", {3, hash_file(scratch / "a")}}};
  EXPECT_NO_THROW(verify_content(scratch.path(), right));
  EXPECT_NO_THROW(verify_sizes(scratch.path(), {{"a", {3, kHash}}}));
  EXPECT_THAT(error_of<DataError>([&] {
                verify_content(scratch.path(), {{"a", {3, kHash}}});
              }),
              StartsWith(path + ": damaged: its checksum"));
  EXPECT_THAT(error_of<DataError>([&] {
                verify_sizes(scratch.path(), {{"a", {4, kHash}}});
              }),
              StartsWith(path + ": damaged: has 3 bytes, 4 were written"));
  EXPECT_THAT(error_of<DataError>([&] {
                verify_sizes(scratch.path(), {{"b", {4, kHash}}});
              }),
              HasSubstr("/b: cannot read its size: No such file or directory"));
}

}  // namespace
}  // namespace dtopp::manifest_test

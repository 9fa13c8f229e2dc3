// Tests reading the folders that `dtopp prepare text` writes.
#include <gtest/gtest.h>

#include "dtopp/data/text/token_file.h"
#include "tests/base/damage.h"
#include "tests/base/scratch_directory.h"
#include "tests/data/token_fixtures.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

// A folder of two documents with a manifest.
fs::path prepared_folder(const ScratchDirectory& scratch, int64_t vocab_size = 257) {
  write_bytes(scratch / "text.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"xyz\"}\n");
  PrepareTextOptions options{{scratch / "text.jsonl"}, scratch / "tokens"};
  prepare_text(options, ByteEncoder(vocab_size));
  return options.output;
}

TEST(PreparedFolder, tells_its_documents_tokenizer_and_largest_id) {
  const ScratchDirectory scratch;
  for (const Verify verify : {Verify::kSizes, Verify::kChanged, Verify::kAll}) {
    const auto stream = TokenStream::open(prepared_folder(scratch), verify);
    EXPECT_EQ(all_tokens(stream), byte_ids({"ab", "xyz"}));
    EXPECT_EQ(stream.documents(), 2U);
    EXPECT_EQ(stream.max_token(), 'z' + 1);
    EXPECT_EQ(stream.tokenizer_hash(), "0123456789abcdef0123456789abcdef");
  }
}

TEST(PreparedFolder, is_hashed_by_the_checksums_of_its_files) {
  const ScratchDirectory one, copy, wider;
  const std::string hash = TokenStream::open(prepared_folder(one)).content_hash();
  EXPECT_EQ(hash.size(), 32U);
  EXPECT_EQ(hash, TokenStream::open(prepared_folder(copy)).content_hash());
  EXPECT_NE(hash, TokenStream::open(prepared_folder(wider, 65537)).content_hash());
}

TEST(PreparedFolder, ids_are_written_as_wide_as_the_vocabulary_needs) {
  for (const auto& [vocab_size, id_bytes] : {std::pair{65536, 2}, {65537, 4}}) {
    const ScratchDirectory scratch;
    const fs::path folder = prepared_folder(scratch, vocab_size);
    EXPECT_EQ(fs::file_size(folder / "tokens.bin"), static_cast<uint64_t>(7 * id_bytes));
    EXPECT_EQ(all_tokens(TokenStream::open(folder)), byte_ids({"ab", "xyz"}));
  }
}

TEST(PreparedFolder, a_damaged_or_missing_file_is_found_and_named) {
  const ScratchDirectory scratch;
  const fs::path folder = prepared_folder(scratch);
  for (const char* name : {"tokens.bin", "tokens.idx", "manifest.json", "tokenizer.json"}) {
    for (const Verify verify : {Verify::kChanged, Verify::kAll})
      expect_damage_is_named<DataError>(folder / name, [&] { TokenStream::open(folder, verify); });
    const std::string bytes = read_file(folder / name);
    fs::remove(folder / name);
    if (name != std::string("manifest.json")) expect_named(folder, name, "No such file", Verify::kSizes);
    write_bytes(folder / name, bytes);
  }
  EXPECT_EQ(TokenStream::open(folder).size(), 7U);
}

TEST(PreparedFolder, records_of_other_programs_are_told_from_damaged_ones) {
  const ScratchDirectory scratch;
  write_bytes(scratch / "a.npy", "12");
  write_bytes(scratch / "progress.json", "{}");
  EXPECT_EQ(TokenStream::open(scratch.path()).size(), 1U);
  write_bytes(scratch / "manifest.json", std::string(100, '7'));
  const auto message = error_of<DataError>([&] { TokenStream::open(scratch.path()); });
  EXPECT_NE(message.find("manifest.json: its own checksum does not match: damaged, or not written by dtopp"),
            message.npos)
      << message;
  EXPECT_EQ(message.find("delete"), message.npos) << message;
}

TEST(PreparedFolder, a_file_that_the_manifest_does_not_know_is_named) {
  const ScratchDirectory scratch;
  const fs::path folder = prepared_folder(scratch);
  write_bytes(folder / "more.npy", "12");
  expect_named(folder, "more.npy", "not in this folder's manifest.json");
  fs::remove(folder / "more.npy");
  write_bytes(folder / "notes.txt", "may lie here");
  EXPECT_EQ(TokenStream::open(folder).size(), 7U);
}

}  // namespace
}  // namespace dtopp::data

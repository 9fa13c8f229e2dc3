// Tests text in gzip and zstd files as TextReader reads it.
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "tests/base/damage.h"
#include "tests/data/text/text_files.h"

namespace dtopp::data {
namespace {

using CompressedTextTest = TextReaderTest;

TEST_F(CompressedTextTest, a_compressed_bomb_ends_at_the_limit) {
  write_bytes(scratch_ / "a.jsonl.zst", zstd(std::string(64 << 20, ' ')));
  TextReader reader(scratch_ / "a.jsonl.zst", 1 << 20);
  std::string document;
  EXPECT_THROW(reader.next(document), DataError);
}

std::string many_lines() {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "{\"text\": \"line " + std::to_string(i * 7919) + "\"}\n";
  return text;
}

TEST_F(CompressedTextTest, compressed_files_read_as_plain_ones) {
  const std::string text = many_lines();
  const Documents expected = read("a.jsonl", text);
  ASSERT_EQ(expected.size(), 20000U);
  EXPECT_EQ(read("a.jsonl.gz", gzip(text)), expected);
  EXPECT_EQ(read("a.jsonl.zst", zstd(text)), expected);
  // Several gzip members or zstd frames, divided within a line.
  for (const size_t cut : {0UL, 1UL, 300007UL, text.size()}) {
    EXPECT_EQ(read("b.jsonl.gz", gzip(text.substr(0, cut)) + gzip(text.substr(cut))), expected);
    EXPECT_EQ(read("b.jsonl.zst", zstd(text.substr(0, cut)) + zstd(text.substr(cut))), expected);
  }
}

TEST_F(CompressedTextTest, a_compressed_file_cut_anywhere_is_named) {
  const std::string text = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  const std::string gz = gzip(text);
  const std::string zst = zstd(text);
  for (size_t size = 0; size < gz.size(); ++size)
    expect_error("a.jsonl.gz", gz.substr(0, size),
                 "byte " + std::to_string(size) + ": the gzip stream ends early");
  for (size_t size = 0; size < zst.size(); ++size)
    expect_error("a.jsonl.zst", zst.substr(0, size),
                 "byte " + std::to_string(size) + ": the zstd stream ends early");
}

TEST_F(CompressedTextTest, what_follows_a_compressed_stream_is_named) {
  const std::string text = "{\"text\": \"one\"}\n";
  expect_error("a.jsonl.gz", gzip(text) + "garbage", "other data follow the gzip stream");
  expect_error("a.jsonl.zst", zstd(text) + "garbage", "other data follow the zstd stream");
  expect_error("a.jsonl.gz", text, "not a gzip file");
  expect_error("a.jsonl.zst", text, "not a zstd file");
}

TEST_F(CompressedTextTest, a_flipped_bit_in_compressed_text_is_named) {
  const std::string text = "{\"text\": \"one\"}\n{\"text\": \"two and some more\"}\n";
  for (const auto& [name, bytes] : {std::pair{"a.jsonl.gz", gzip(text)}, {"a.jsonl.zst", zstd(text)}})
    expect_error(name, with_flipped_bit(bytes, (bytes.size() - 3) * 8), name);  // of the checksum
}

using CompressedTextNightly = TextReaderTest;

TEST_F(CompressedTextNightly, flipped_bits_in_compressed_text_never_change_documents_unseen) {
  const std::string text = "{\"text\": \"one\"}\n{\"text\": \"two and some more\"}\n";
  const Documents expected = {"one", "two and some more"};
  for (const auto& [name, bytes] : {std::pair{"a.jsonl.gz", gzip(text)}, {"a.jsonl.zst", zstd(text)}}) {
    size_t found = 0;
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      write_bytes(scratch_ / name, with_flipped_bit(bytes, bit));
      try {
        // The time and operating system in a gzip header may change undetected.
        EXPECT_EQ(documents_of(scratch_ / name), expected) << name << " bit " << bit;
      } catch (const DataError&) {
        ++found;
      }
    }
    EXPECT_GT(found, bytes.size() * 6) << name;
  }
}

}  // namespace
}  // namespace dtopp::data

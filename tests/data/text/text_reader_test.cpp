#include "dtopp/data/text/text_reader.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "tests/base/damage.h"
#include "tests/base/scratch_directory.h"
#include "tests/data/token_fixtures.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

std::string gzip(const std::string& text) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

std::vector<std::string> documents_of(const fs::path& path) {
  TextReader reader(path);
  std::vector<std::string> documents;
  for (std::string document; reader.next(document);) documents.push_back(document);
  return documents;
}

class TextReaderTest : public testing::Test {
 protected:
  std::vector<std::string> read(const std::string& name, const std::string& bytes) {
    write_bytes(scratch_ / name, bytes);
    return documents_of(scratch_ / name);
  }
  // The error names the file and `what`.
  void expect_error(const std::string& name, const std::string& bytes, const std::string& what) {
    write_bytes(scratch_ / name, bytes);
    const auto message = error_of<DataError>([&] { documents_of(scratch_ / name); });
    EXPECT_NE(message.find((scratch_ / name).string()), message.npos) << message;
    EXPECT_NE(message.find(what), message.npos) << message << "\nlacks " << what;
  }

  ScratchDirectory scratch_;
};

using Documents = std::vector<std::string>;

TEST_F(TextReaderTest, reads_the_text_of_every_line) {
  EXPECT_EQ(read("a.jsonl",
                 "{\"text\": \"a\\n\\u00e9\\u0000b\"}\n{\"id\": 1, \"text\": \"c\", \"x\": {\"text\": 2}}\n"),
            (Documents{std::string("a\n\u00e9\0b", 6), "c"}));
}

TEST_F(TextReaderTest, lines_may_end_in_crlf_and_the_last_in_nothing) {
  EXPECT_EQ(read("a.jsonl", "{\"text\": \"a\"}\r\n\r\n  \n{\"text\": \"b\"}"), (Documents{"a", "b"}));
}

TEST_F(TextReaderTest, leaves_out_documents_without_text) {
  EXPECT_EQ(read("a.jsonl", "{\"text\": \"\"}\n{\"text\": \"b\"}\n{\"text\": \"\"}\n"), (Documents{"b"}));
  EXPECT_EQ(read("b.jsonl", ""), Documents{});
  EXPECT_EQ(read("c.txt", ""), Documents{});
}

TEST_F(TextReaderTest, a_text_file_is_one_document) {
  EXPECT_EQ(read("a.txt", "one\r\n\ntwo\n"), (Documents{"one\r\n\ntwo\n"}));
}

TEST_F(TextReaderTest, a_file_of_any_other_name_is_one_document_too) {
  const std::string text = "# Title\n\n{\"text\": 1}\n";
  for (const char* name : {"README.md", "a.csv", "jsonl", "no_ending", ".txt", "a.jsonl.bz2"})
    EXPECT_EQ(read(name, text), Documents{text}) << name;
  EXPECT_EQ(read("a.md.gz", gzip(text)), Documents{text});
  EXPECT_EQ(read("a.zst", zstd(text)), Documents{text});
  expect_error("a.npy", "\x93NUMPY", "line 1: byte 0: invalid UTF-8");
}

TEST_F(TextReaderTest, reads_json_lines_and_text_under_every_ending) {
  const std::string lines = "{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
  const std::string text = "a\nb\n";
  for (const std::string name :
       {"x.jsonl", "x.ndjson", "x.json", "c4.00000-of-01024.json", "shard.jsonl.json"}) {
    EXPECT_EQ(read(name, lines), (Documents{"a", "b"})) << name;
    EXPECT_EQ(read(name + ".gz", gzip(lines)), (Documents{"a", "b"})) << name;
    EXPECT_EQ(read(name + ".zst", zstd(lines)), (Documents{"a", "b"})) << name;
    EXPECT_EQ(read(name + ".zstd", zstd(lines)), (Documents{"a", "b"})) << name;
  }
  EXPECT_EQ(read("x.txt.gz", gzip(text)), Documents{text});
  EXPECT_EQ(read("x.txt.zst", zstd(text)), Documents{text});
  EXPECT_EQ(read("x.txt.zstd", zstd(text)), Documents{text});
}

TEST_F(TextReaderTest, the_first_bytes_tell_the_compression_where_the_name_does_not) {
  const std::string lines = "{\"text\": \"a\"}\n";
  for (const std::string& bytes : {gzip(lines), zstd(lines)}) {
    for (const char* name : {"a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.jsonl.zstd", "a.json"})
      EXPECT_EQ(read(name, bytes), Documents{"a"}) << name;
    expect_error("a.txt", bytes, "looks like JSON lines");
  }
}

TEST_F(TextReaderTest, json_lines_named_as_text_and_json_arrays_are_refused) {
  for (const char* text :
       {"{\"text\": \"a\"}\n{\"text\": \"b\"}\n", "\r\n \n {\"id\": 1, \"text\": 2}", "{\"text\": \"a\"}"}) {
    expect_error("a.txt", text, "looks like JSON lines; rename it to .jsonl");
    expect_error("a.txt.gz", gzip(text), "looks like JSON lines; rename it to .jsonl");
    expect_error("data", text, "looks like JSON lines; rename it to .jsonl");
  }
  for (const char* text :
       {"{\"txt\": \"a\"}\n", "{\"text\": \"a\"\n}\n", "# Title\n{\"text\": \"a\"}\n", "[{\"text\": \"a\"}]"})
    EXPECT_EQ(read("a.txt", text), Documents{text});
  for (const char* text : {"[{\"text\": \"a\"}]", "[\n  {\"text\": \"a\"}\n]\n", "[]"})
    expect_error("a.json", text, "line 1: a JSON array; write it as JSON lines");
}

// The documents of a plain text file and the lines they begin in.
std::vector<std::pair<std::string, uint64_t>> split(const fs::path& path, const std::string& separator) {
  LineReader reader(path, {}, {.separator = separator});
  std::vector<std::pair<std::string, uint64_t>> documents;
  for (std::string document; reader.next(document);) documents.emplace_back(document, reader.line_number());
  return documents;
}

TEST_F(TextReaderTest, a_separator_divides_plain_text_and_takes_the_line_breaks_around_it) {
  using Split = std::vector<std::pair<std::string, uint64_t>>;
  write_bytes(scratch_ / "a.txt",
              "\n one\n\nmore \r\n<|end|>\r\ntwo<|end|><|end|>\n\n<|end|>three <|end|>\n");
  EXPECT_EQ(split(scratch_ / "a.txt", "<|end|>"),
            (Split{{" one\n\nmore ", 2}, {"two", 6}, {"", 6}, {"", 8}, {"three ", 8}, {"", 9}}));
  write_bytes(scratch_ / "b.txt", "a\n\n\nb\n\nc\n");
  EXPECT_EQ(split(scratch_ / "b.txt", "\n\n"), (Split{{"a", 1}, {"b", 4}, {"c", 6}}));
  write_bytes(scratch_ / "c.jsonl", "{<|end|>}\n");
  EXPECT_EQ(split(scratch_ / "c.jsonl", "<|end|>"), (Split{{"{<|end|>}", 1}}));
}

TEST_F(TextReaderTest, a_separator_is_found_wherever_the_chunks_of_the_file_end) {
  constexpr size_t kChunk = size_t{1} << 18;
  const std::string separator = "<|end|>";
  for (size_t shift = 0; shift <= separator.size() + 1; ++shift) {
    const std::string first(kChunk - shift, 'a');
    const std::string second(2 * kChunk - separator.size(), '<');
    write_bytes(scratch_ / "a.txt", first + separator + second + separator + "<|end|");
    const auto documents = split(scratch_ / "a.txt", separator);
    ASSERT_EQ(documents.size(), 3U) << shift;
    EXPECT_EQ(documents[0].first, first);
    EXPECT_EQ(documents[1].first, second);
    EXPECT_EQ(documents[2].first, "<|end|");
  }
}

TEST_F(TextReaderTest, bad_lines_are_named_by_number) {
  const std::string good = "{\"text\": \"a\"}\n";
  expect_error("a.jsonl", good + "\n{\"text\": \"b\"\n" + good, "line 3: invalid JSON");
  expect_error("a.jsonl", good + "{\"text\": \"b\"} x\n", "line 2: invalid JSON");
  expect_error("a.jsonl", good + "7\n", "line 2: must be a JSON object");
  expect_error("a.jsonl", good + "{\"txt\": \"a\"}\n", "line 2: has no key \"text\"");
  expect_error("a.jsonl", good + "{\"text\": 5}\n", "line 2: the value of \"text\" must be a string");
  expect_error("a.jsonl", good + "{\"text\": null}\n", "line 2: the value of \"text\" must be a string");
  expect_error("a.jsonl", good + "{\"text\": \"\xc3(\"}\n", "line 2: byte 10: invalid UTF-8");
  expect_error("a.jsonl", good + "{\"text\": \"\\ud800\"}\n", "line 2: invalid JSON");
  expect_error("a.jsonl", good + "{\"a\": " + std::string(100000, '[') + "\n", "line 2: invalid JSON");
  expect_error("a.jsonl", good + "[1]\n", "line 2: a JSON array");
  expect_error("a.txt", "fine\nab\xff", "line 2: byte 2: invalid UTF-8");
  expect_error("a.txt", "\xed\xa0\x80", "line 1: byte 0: invalid UTF-8");
}

TEST_F(TextReaderTest, longer_lines_than_allowed_are_named) {
  write_bytes(scratch_ / "a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"" + std::string(600000, 'x') + "\"}\n");
  TextReader reader(scratch_ / "a.jsonl", 500000);
  std::string document;
  EXPECT_TRUE(reader.next(document));
  const auto message = error_of<DataError>([&] { reader.next(document); });
  EXPECT_NE(message.find("line 2: longer than the 500000 bytes"), message.npos) << message;
  write_bytes(scratch_ / "b.jsonl", "{\"text\":\"a\"}\n");
  EXPECT_TRUE(TextReader(scratch_ / "b.jsonl", 12).next(document));
  TextReader one_less(scratch_ / "b.jsonl", 11);
  EXPECT_THROW(one_less.next(document), DataError);
}

TEST_F(TextReaderTest, a_compressed_bomb_ends_at_the_limit) {
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

TEST_F(TextReaderTest, compressed_files_read_as_plain_ones) {
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

TEST_F(TextReaderTest, a_compressed_file_cut_anywhere_is_named) {
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

TEST_F(TextReaderTest, what_follows_a_compressed_stream_is_named) {
  const std::string text = "{\"text\": \"one\"}\n";
  expect_error("a.jsonl.gz", gzip(text) + "garbage", "something else follows the gzip stream");
  expect_error("a.jsonl.zst", zstd(text) + "garbage", "something else follows the zstd stream");
  expect_error("a.jsonl.gz", text, "not a gzip file");
  expect_error("a.jsonl.zst", text, "not a zstd file");
}

TEST_F(TextReaderTest, a_flipped_bit_in_compressed_text_is_named) {
  const std::string text = "{\"text\": \"one\"}\n{\"text\": \"two and some more\"}\n";
  for (const auto& [name, bytes] : {std::pair{"a.jsonl.gz", gzip(text)}, {"a.jsonl.zst", zstd(text)}})
    expect_error(name, with_flipped_bit(bytes, (bytes.size() - 3) * 8), name);  // of the checksum
}

using TextReaderNightly = TextReaderTest;

TEST_F(TextReaderNightly, flipped_bits_in_compressed_text_never_change_documents_unseen) {
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

TEST_F(TextReaderTest, missing_files_and_directories_are_named) {
  EXPECT_NE(error_of<DataError>([&] { TextReader(scratch_ / "no.jsonl"); }).find("no.jsonl"),
            std::string::npos);
  fs::create_directory(scratch_ / "d.jsonl");
  const auto message = error_of<DataError>([&] { documents_of(scratch_ / "d.jsonl"); });
  EXPECT_NE(message.find("d.jsonl"), message.npos);
}

TEST_F(TextReaderTest, goes_on_at_any_position_it_gave) {
  const std::string text = "{\"text\": \"a\"}\r\n\n{\"text\": \"b\"}\n{\"text\": \"c\"}";
  for (const auto& [name, bytes] : {std::pair{"a.jsonl", text},
                                    {"a.jsonl.gz", gzip(text)},
                                    {"a.jsonl.zst", zstd(text)},
                                    {"a.txt", text}}) {
    const fs::path path = scratch_ / name;
    write_bytes(path, bytes);
    std::vector<TextPosition> positions = {{}};
    std::vector<std::string> lines;
    LineReader reader(path);
    for (std::string line; reader.next(line); lines.push_back(line)) positions.push_back(reader.position());
    EXPECT_EQ(positions.back().offset, text.size());
    for (size_t i = 0; i < positions.size(); ++i) {
      LineReader rest(path, positions[i]);
      std::string line;
      for (size_t j = i; j < lines.size(); ++j) {
        ASSERT_TRUE(rest.next(line));
        EXPECT_EQ(line, lines[j]);
        EXPECT_EQ(rest.position(), positions[j + 1]);
      }
      EXPECT_FALSE(rest.next(line));
    }
    EXPECT_THROW(LineReader(path, {text.size() + 1, 9}), DataError);
  }
}

TEST_F(TextReaderTest, goes_on_between_documents_of_plain_text) {
  const fs::path path = scratch_ / "a.txt";
  write_bytes(path, "one\n--\n\ntwo\n--\nthree--");
  const LineOptions options = {.separator = "--"};
  const auto documents = split(path, "--");
  ASSERT_EQ(documents.size(), 3U);
  LineReader reader(path, {}, options);
  std::string document;
  for (size_t i = 0; i < documents.size(); ++i) {
    LineReader rest(path, reader.position(), options);
    for (size_t j = i; j < documents.size(); ++j) {
      ASSERT_TRUE(rest.next(document));
      EXPECT_EQ(document, documents[j].first);
      EXPECT_EQ(rest.line_number(), documents[j].second);
    }
    ASSERT_TRUE(reader.next(document));
  }
}

RC_GTEST_PROP(TextReader, never_crashes_on_any_bytes, ()) {
  static const ScratchDirectory scratch;
  const auto name = *rc::gen::element<std::string>("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.txt");
  std::string bytes = *rc::gen::arbitrary<std::string>();
  if (*rc::gen::arbitrary<bool>()) bytes = "{\"text\": \"" + bytes + "\"}\n";
  if (*rc::gen::arbitrary<bool>() && name.ends_with(".gz")) bytes = gzip(bytes);
  if (*rc::gen::arbitrary<bool>() && name.ends_with(".zst")) bytes = zstd(bytes);
  write_bytes(scratch / name, bytes);
  try {
    documents_of(scratch / name);
  } catch (const DataError& error) {
    RC_ASSERT(std::string(error.what()).find(name) != std::string::npos);
  }
}

}  // namespace
}  // namespace dtopp::data

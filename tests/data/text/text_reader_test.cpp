#include "dtopp/data/text/text_reader.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/data/text/text_files.h"

namespace dtopp::data {
namespace {

namespace fs = std::filesystem;

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

TEST_F(TextReaderTest, drops_a_byte_order_mark_at_the_start_of_a_document) {
  const std::string mark = "\xef\xbb\xbf";
  EXPECT_EQ(read("a.txt", mark + "one" + mark), (Documents{"one" + mark}));
  EXPECT_EQ(read("b.txt", mark), Documents{});
  EXPECT_EQ(read("c.jsonl", mark + "{\"text\": \"" + mark + "a\"}\n{\"text\": \"\\ufeffb\"}\n"),
            (Documents{"a", "b"}));
  expect_error("d.txt", mark + "{\"text\": \"a\"}", "looks like JSON lines");
  EXPECT_EQ(read("e.txt", mark.substr(0, 2) + "\xbe"), (Documents{mark.substr(0, 2) + "\xbe"}));
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

#include "dtopp/data/text/tokenizer.h"

#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"

namespace dtopp::data {
namespace {

const std::filesystem::path kSource = DTOPP_SOURCE_DIR;
const std::filesystem::path kShipped = kSource / "assets/tokenizer/gpt-neox-20b.tokenizer.json";

// Loads a tokenizer.json from a string.
Tokenizer load_text(const std::string& text) {
  const auto path =
      std::filesystem::temp_directory_path() / ("dtopp-tokenizer-test-" + std::to_string(getpid()) + ".json");
  std::ofstream(path, std::ios::binary) << text;
  struct Remove {
    std::filesystem::path path;
    ~Remove() { std::filesystem::remove(path); }
  } remove{path};
  return Tokenizer::load(path);
}

const nlohmann::json& golden_cases() {
  static const nlohmann::json golden =
      nlohmann::json::parse(read_file(kSource / "tests/data/tokenizer_golden.json"));
  return golden["cases"];
}

Tokenizer load_case(const nlohmann::json& golden) {
  return golden["json"].is_null() ? Tokenizer::load(kShipped) : load_text(golden["json"]);
}

// A tokenizer.json of three bytes and one merge, for cases about the file format.
nlohmann::json tiny_file() {
  return {{"version", "1.0"},
          {"added_tokens", nlohmann::json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}},
            {"merges", nlohmann::json::array({"a b"})}}}};
}

nlohmann::json added_token(const std::string& content) {
  return {{"id", 99},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

TEST(Tokenizer, encodes_hard_cases_as_hugging_face_does) {
  for (const auto& golden : golden_cases()) {
    SCOPED_TRACE(golden["name"]);
    const Tokenizer tokenizer = load_case(golden);
    ASSERT_GT(golden["encode"].size(), 90u);
    for (const auto& item : golden["encode"]) {
      const std::string text = item["text"];
      EXPECT_EQ(tokenizer.encode(text), item["ids"].get<std::vector<int32_t>>()) << item["text"];
    }
  }
}

TEST(Tokenizer, decodes_any_ids_as_hugging_face_does) {
  for (const auto& golden : golden_cases()) {
    SCOPED_TRACE(golden["name"]);
    const Tokenizer tokenizer = load_case(golden);
    ASSERT_FALSE(golden["decode"].empty());
    for (const auto& item : golden["decode"]) {
      const auto ids = item["ids"].get<std::vector<int32_t>>();
      EXPECT_EQ(item["skip_special"] ? tokenizer.decode_generated(ids) : tokenizer.decode(ids),
                item["text"].get<std::string>());
    }
  }
}

TEST(Tokenizer, knows_its_vocabulary_and_file) {
  const Tokenizer tokenizer = Tokenizer::load(kShipped);
  EXPECT_EQ(tokenizer.vocab_size(), 50277);
  EXPECT_EQ(tokenizer.end_of_text(), 0);
  EXPECT_EQ(tokenizer.token_to_id("<|padding|>"), 1);
  EXPECT_EQ(tokenizer.token_to_id("  "), 50276);
  EXPECT_EQ(tokenizer.token_to_id("Ġthe"), 253);
  EXPECT_EQ(tokenizer.token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.file_text(), read_file(kShipped));
  EXPECT_EQ(tokenizer.hash(), hash_file(kShipped));
}

TEST(Tokenizer, gives_back_a_megabyte_without_a_space) {
  const Tokenizer tokenizer = Tokenizer::load(kShipped);
  std::string text;
  for (size_t i = 0; text.size() < (1u << 20); ++i) text += static_cast<char>('a' + i * i % 26);
  const auto ids = tokenizer.encode(text);
  EXPECT_LT(ids.size(), text.size());
  EXPECT_EQ(tokenizer.decode(ids), text);
}

TEST(Tokenizer, long_runs_of_marks_are_ordered_without_quadratic_work) {
  const Tokenizer tokenizer = Tokenizer::load(kShipped);
  std::string text = "e";
  std::string ordered = "e";
  for (int i = 0; i < 250000; ++i) text += "\u0301\u0323";  // classes 230 and 220
  for (int i = 0; i < 250000; ++i) ordered += "\u0323";
  for (int i = 0; i < 250000; ++i) ordered += "\u0301";
  // The first dot below joins the e (U+1EB9). All other marks stay as they are.
  ordered.replace(0, 3, "\u1EB9");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), ordered);
}

TEST(Tokenizer, is_the_same_from_many_threads) {
  const Tokenizer tokenizer = Tokenizer::load(kShipped);
  const auto& items = golden_cases()[0]["encode"];
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  threads.reserve(wrong.size());
  for (int& errors : wrong) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        for (const auto& item : items) {
          errors +=
              tokenizer.encode(item["text"].get<std::string>()) != item["ids"].get<std::vector<int32_t>>();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, replaces_each_maximal_invalid_part_once) {
  auto file = tiny_file();
  auto& vocab = file["model"]["vocab"];
  vocab["ð"] = 3;  // F0
  vocab["Ł"] = 4;  // 9F
  vocab["ĳ"] = 5;  // 91
  vocab["í"] = 6;  // ED
  vocab["ł"] = 7;  // A0
  const Tokenizer tokenizer = load_text(file.dump());
  const auto decode = [&](std::vector<int32_t> ids) { return tokenizer.decode(ids); };
  EXPECT_EQ(decode({3, 4, 0}), "\uFFFDa");        // a truncated four-byte character
  EXPECT_EQ(decode({3, 3, 4}), "\uFFFD\uFFFD");   // each start byte counts separately
  EXPECT_EQ(decode({6, 7, 0}), "\uFFFD\uFFFDa");  // a surrogate: its second byte never fits
  EXPECT_EQ(decode({5, 4}), "\uFFFD\uFFFD");      // bare continuation bytes
}

TEST(Tokenizer, names_the_first_byte_that_is_not_utf8) {
  const Tokenizer tokenizer = Tokenizer::load(kShipped);
  for (const auto& [text, offset] : std::vector<std::pair<std::string, int>>{
           {"ab\xFF", 2}, {"é\xC3", 2}, {"\xC0\x80", 0}, {"a\xED\xA0\x80", 1}, {"\xF4\x90\x80\x80", 0}}) {
    try {
      tokenizer.encode(text);
      ADD_FAILURE() << "accepted invalid UTF-8";
    } catch (const DataError& error) {
      EXPECT_EQ(std::string(error.what()).rfind("byte " + std::to_string(offset) + " ", 0), 0u)
          << error.what();
    }
  }
}

TEST(Tokenizer, refuses_ids_that_do_not_exist) {
  const Tokenizer tokenizer = Tokenizer::load(kShipped);
  for (const int32_t id : {-1, 50277, INT32_MAX, INT32_MIN}) {
    EXPECT_THROW(tokenizer.decode(std::vector<int32_t>{0, id}), DataError);
  }
}

TEST(Tokenizer, gives_no_text_to_ids_of_a_padded_vocabulary) {
  const Tokenizer tokenizer = Tokenizer::load(kShipped);
  EXPECT_EQ(tokenizer.decode_generated(std::vector<int32_t>{50277, 253, 50303, 0}), " the");
}

TEST(Tokenizer, numbers_added_tokens_as_hugging_face_does) {
  auto file = tiny_file();
  for (const char* content : {"<x>", "ab", "", "<|endoftext|>"})
    file["added_tokens"].push_back(added_token(content));
  const Tokenizer tokenizer = load_text(file.dump());
  EXPECT_EQ(tokenizer.token_to_id("<x>"), 3);
  EXPECT_EQ(tokenizer.token_to_id("ab"), 2);
  EXPECT_EQ(tokenizer.end_of_text(), 4);
  EXPECT_EQ(tokenizer.vocab_size(), 5);
}

TEST(Tokenizer, asks_for_an_end_of_text_only_when_it_is_needed) {
  const Tokenizer tokenizer = load_text(tiny_file().dump());
  EXPECT_EQ(tokenizer.encode("abba"), (std::vector<int32_t>{2, 1, 0}));
  EXPECT_THROW(tokenizer.end_of_text(), DataError);
}

TEST(Tokenizer, knows_the_end_of_text_of_each_family) {
  for (const char* token : {"<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>"}) {
    auto file = tiny_file();
    for (const char* content : {"<x>", token}) file["added_tokens"].push_back(added_token(content));
    const Tokenizer tokenizer = load_text(file.dump());
    EXPECT_EQ(tokenizer.end_of_text(), 4);
    EXPECT_EQ(tokenizer.end_of_text_token(), token);
  }
  auto file = tiny_file();
  for (const char* content : {"</s>", "<|endoftext|>"}) file["added_tokens"].push_back(added_token(content));
  EXPECT_EQ(load_text(file.dump()).end_of_text_token(), "<|endoftext|>");
  // Text that merges to "</s>" ends nothing.
  auto merged = tiny_file();
  merged["model"]["vocab"]["</s>"] = 3;
  EXPECT_EQ(load_text(merged.dump()).end_of_text_token(), std::nullopt);
}

TEST(Tokenizer, refuses_missing_and_oversized_files) {
  EXPECT_THROW(Tokenizer::load("/no/such/tokenizer.json"), DataError);
  EXPECT_THROW(load_text(std::string((64u << 20) + 1, ' ')), DataError);
}

TEST(Tokenizer, refuses_a_cut_file) {
  const std::string text = tiny_file().dump();
  for (const size_t size : {size_t{0}, text.size() / 2, text.size() - 1})
    EXPECT_THROW(load_text(text.substr(0, size)), DataError);
}

TEST(TokenizerNightly, survives_every_cut_and_many_flips_of_its_file) {
  auto file = tiny_file();
  file["added_tokens"].push_back(added_token("<|endoftext|>"));
  const std::string text = file.dump();
  for (size_t size = 0; size < text.size(); ++size) EXPECT_THROW(load_text(text.substr(0, size)), DataError);
  for (size_t i = 0; i < text.size(); ++i) {
    for (const int flip : {1, 4, 32, 128}) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      try {
        load_text(damaged).encode("abab <|endoftext|> ba");
      } catch (const DataError&) {  // a refusal is fine, and so is another valid tokenizer
      }
    }
  }
}

}  // namespace

}  // namespace dtopp::data

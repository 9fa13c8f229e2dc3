#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/eval/activation_analysis.h"

namespace dtopp::eval {
namespace {

const std::string kShipped = DTOPP_SOURCE_DIR "/assets/tokenizer/gpt-neox-20b.tokenizer.json";

std::vector<int64_t> encode(const data::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  return {ids.begin(), ids.end()};
}

std::vector<std::string> names(const TokenKinds& kinds) {
  std::vector<std::string> out;
  for (const uint8_t kind : kinds.kind) out.push_back(kinds.names.at(kind));
  return out;
}

TEST(TokenKinds, tell_the_parts_of_words_apart) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(kShipped);
  auto ids = encode(tokenizer, "The foghorns, 42\nNobody");
  ids.push_back(tokenizer.end_of_text());
  ids.push_back(50300);  // beyond the vocabulary, as padding may be
  const auto kinds = find_token_kinds(ids, tokenizer, 8);
  ASSERT_EQ(kinds.size(), 3);
  EXPECT_EQ(kinds[2].by, "part_of_word");
  std::vector<std::string> expected = {"whole word"};
  const size_t horns = encode(tokenizer, " foghorns").size();
  ASSERT_GT(horns, 1);
  expected.emplace_back("beginning of a word");
  expected.insert(expected.end(), horns - 1, "rest of a word");
  for (const char* kind : {"punctuation", "number", "white space"}) expected.emplace_back(kind);
  const size_t nobody = encode(tokenizer, "Nobody").size();
  expected.emplace_back(nobody > 1 ? "beginning of a word" : "whole word");
  expected.insert(expected.end(), nobody - 1, "rest of a word");
  expected.insert(expected.end(), 2, "special");
  EXPECT_EQ(names(kinds[2]), expected);
}

TEST(TokenKinds, rank_ids_by_how_often_they_occur_here) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(kShipped);
  std::vector<int64_t> ids;
  for (int64_t id = 1000; id < 1150; ++id) ids.insert(ids.end(), static_cast<size_t>(1151 - id), id);
  const TokenKinds kinds = find_token_kinds(ids, tokenizer, 64)[0];
  EXPECT_EQ(kinds.by, "frequency");
  std::vector<int64_t> different(kinds.names.size());
  for (size_t i = 0; i < ids.size(); ++i) different[kinds.kind[i]] += i == 0 || ids[i] != ids[i - 1] ? 1 : 0;
  EXPECT_THAT(different, testing::ElementsAre(10, 90, 50, 0, 0));
}

TEST(TokenKinds, place_tokens_in_their_window) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(kShipped);
  const TokenKinds kinds = find_token_kinds(std::vector<int64_t>(13, 5), tokenizer, 6)[1];
  EXPECT_THAT(names(kinds), testing::ElementsAre("0", "1", "2-3", "2-3", "4-5", "4-5", "0", "1", "2-3", "2-3",
                                                 "4-5", "4-5", "0"));
}

TEST(TokenKinds, begin_windows_anew_where_a_source_begins) {
  const data::Tokenizer tokenizer = data::Tokenizer::load(kShipped);
  const std::vector<uint64_t> begins = {0, 4};
  const TokenKinds kinds = find_token_kinds(std::vector<int64_t>(8, 5), tokenizer, 3, begins)[1];
  EXPECT_THAT(names(kinds), testing::ElementsAre("0", "1", "2", "0", "0", "1", "2", "0"));
}

}  // namespace
}  // namespace dtopp::eval

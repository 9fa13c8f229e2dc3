#include "dtopp/data/text/split_pattern.h"

#include <chrono>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "dtopp/base/errors.h"

namespace dtopp::data {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces_of(const SplitSpec& spec, const std::string& text) {
  const SplitPattern pattern(spec, "tokenizer.json");
  SplitPattern::Scratch scratch;
  scratch.set_text_bytes(text.size());
  Pieces pieces;
  pattern.for_each_piece(text, scratch,
                         [&](size_t begin, size_t bytes) { pieces.push_back(text.substr(begin, bytes)); });
  return pieces;
}

Pieces pieces_of(const std::string& pattern, const std::string& text) {
  return pieces_of({.pattern = pattern, .field = "pattern"}, text);
}

// The message of the error; empty if there is none.
std::string split_error(const std::string& pattern, const std::string& text = "") {
  try {
    pieces_of(pattern, text);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(SplitPattern, divides_text_where_the_pattern_matches) {
  EXPECT_EQ(pieces_of("[0-9]{1,3}", "ab12345c6"), (Pieces{"ab", "123", "45", "c", "6"}));
  EXPECT_EQ(pieces_of("x", "abc"), (Pieces{"abc"}));
  EXPECT_EQ(pieces_of("x", ""), (Pieces{}));
  EXPECT_EQ(pieces_of("日+", "a日日é"), (Pieces{"a", "日日", "é"}));
}

TEST(SplitPattern, leaves_out_matches_or_the_rest) {
  EXPECT_EQ(pieces_of({.pattern = " ", .field = "", .keep_matches = false}, "a b  c "),
            (Pieces{"a", "b", "c"}));
  EXPECT_EQ(pieces_of({.pattern = "[a-z]+", .field = "", .keep_rest = false}, "a b1c"),
            (Pieces{"a", "b", "c"}));
}

TEST(SplitPattern, an_empty_match_divides_but_not_directly_after_another_match) {
  EXPECT_EQ(pieces_of("(?=b)", "abbé"), (Pieces{"a", "b", "bé"}));
  EXPECT_EQ(pieces_of("b|(?=c)|$", "abcd"), (Pieces{"a", "b", "cd"}));
  EXPECT_EQ(pieces_of("", "aé"), (Pieces{"a", "é"}));
}

// Expected: tokenizers 0.23.3.
TEST(SplitPattern, matches_as_oniguruma_does_where_pcre2_differs) {
  EXPECT_EQ(pieces_of("\\s+", "a\u180e \u0085\u3000b"), (Pieces{"a\u180e", " \u0085\u3000", "b"}));
  EXPECT_EQ(pieces_of("[^\\S\\r]", "a\u180e\r "), (Pieces{"a\u180e\r", " "}));
  EXPECT_EQ(pieces_of("\\w+", "a\u0301\u00bd "), (Pieces{"a\u0301\u00bd", " "}));
  EXPECT_EQ(pieces_of("[\\w]+", "a\u0301\u00bd "), (Pieces{"a\u0301", "\u00bd "}));
  EXPECT_EQ(pieces_of("\\b", "a\u0301-b"), (Pieces{"a\u0301", "-", "b"}));
  EXPECT_EQ(pieces_of("a{1,2}+b", "aaaaab"), (Pieces{"aaaaab"}));  // repeats the interval
  EXPECT_EQ(pieces_of("a{,2}b", "aab"), (Pieces{"aab"}));
  EXPECT_EQ(pieces_of("x{a}", "x{a}"), (Pieces{"x{a}"}));
  EXPECT_EQ(pieces_of("[a[bc]]+", "xabcx"), (Pieces{"x", "abc", "x"}));
  EXPECT_EQ(pieces_of("[\\p{L}&&[^a-c]]+", "abcdef"), (Pieces{"abc", "def"}));
  EXPECT_EQ(pieces_of("\\v", "\n\v"), (Pieces{"\n", "\v"}));
  EXPECT_EQ(pieces_of("\\p{^L}|\\u65e5|\\x{e9}", "a1日é"), (Pieces{"a", "1", "日", "é"}));
  EXPECT_EQ(pieces_of("(?i:'s)", "'S'ſ's"), (Pieces{"'S", "'ſ", "'s"}));
  EXPECT_EQ(pieces_of("^a$", "a\nb\na"), (Pieces{"a", "\nb\n", "a"}));
  EXPECT_EQ(pieces_of(".+", "a\r\u2028\nb"), (Pieces{"a\r\u2028", "\n", "b"}));
}

TEST(SplitPattern, names_the_file_the_field_and_the_byte_of_what_it_does_not_support) {
  EXPECT_EQ(split_error("ab\\h"),
            "tokenizer.json: pattern: byte 2 of the pattern: this escape is not supported");
  for (const char* pattern :
       {"(a",          "a)",      "[a",      "[]a]",     "[a&&]",  "[^a&&b]", "[a[^b]]", "[[:alpha:]]",
        "[a-\\d]",     "[\\d-z]", "[z-a]",   "[a-",      "*",      "a**",     "(?=a)*",  "a{2}?",
        "a{2}{3}",     "\\1",     "(?<n>a)", "(?#a)",    "(?m:a)", "(?i)a",   "(*FAIL)", "(?i:é)",
        "(?i:\\p{L})", "(?i:ss)", "\\",      "\\p{Foo}", "\\pL",   "\\p{L",   "\\x",     "\\xe9",
        "\\x{110000}", "\\ud800", "\\W",     "\\B",      "\\X",    "\\R",     "\\K",     "(?<=a+)b"})
    EXPECT_EQ(split_error(pattern).rfind("tokenizer.json: pattern: ", 0), 0u) << pattern;
  EXPECT_NE(split_error(std::string(1000, '(') + std::string(1000, ')')), "");
  EXPECT_NE(split_error("(?:a{1000}){1000}{1000}"), "");
}

TEST(SplitPattern, backtracking_without_end_is_an_error) {
  const std::string text(1 << 18, 'a');
  for (const char* pattern : {"(?:a+)+[bc]", "\\p{L}*[bc]", "a*a*a*a*[bc]", "a*[bc]|.", "(?=(?:.*)*[bc])a",
                              "(?:a|aa)+[bc]", "(?:a?){30}a{30}[bc]|."}) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_NE(split_error(pattern, text).find("takes too much time or memory"), std::string::npos) << pattern;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60)) << pattern;
  }
}

TEST(SplitPattern, long_pieces_are_no_error) {
  for (const char* pattern :
       {"\\p{L}+", "[^\\s\\p{L}]?[\\p{Lu}\\p{Lo}]*[\\p{Ll}\\p{Lo}]+|\\p{Lu}+", "(?:a|b)+|日+|A+"})
    for (const char* c : {"a", "A", "日"}) {
      std::string text;
      while (text.size() < (1 << 20)) text += c;
      EXPECT_EQ(pieces_of(pattern, text).size(), 1u) << pattern << " " << c;
    }
}

RC_GTEST_PROP(SplitPattern, any_pattern_is_refused_or_its_pieces_are_the_text, ()) {
  const auto parts = *rc::gen::container<std::vector<std::string>>(rc::gen::element<std::string>(
      "a", "b", "é", "日", "(", ")", "(?:", "(?i:", "(?=", "(?<!", "[", "[^", "]", "&&", "-", "|", "*", "+",
      "?", "{1,3}", "{", "}", ",", "\\", "\\s", "\\S", "\\w", "\\b", "\\p{L}", "\\p{", "\\x{", "\\u00e9", "^",
      "$", ".", "\n", "1"));
  std::string pattern;
  for (const std::string& part : parts) pattern += part;
  const std::string text = "ab é日\n1 a-b\u0301{}aaaa";
  try {
    std::string joined;
    for (const std::string& piece : pieces_of(pattern, text)) {
      RC_ASSERT(!piece.empty());
      joined += piece;
    }
    RC_ASSERT(joined == text);
  } catch (const DataError& error) {
    RC_ASSERT(std::string(error.what()).starts_with("tokenizer.json: pattern: "));
  }
}

}  // namespace

}  // namespace dtopp::data

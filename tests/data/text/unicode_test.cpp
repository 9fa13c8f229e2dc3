#include "dtopp/data/text/unicode.h"

#include <gtest/gtest.h>

namespace dtopp::data {
namespace {

TEST(ReplaceNewCodePoints, keeps_offsets_and_all_older_code_points) {
  std::string storage;
  const std::string old = "abcdefgh é 日本 🙂 e\u0301";
  EXPECT_EQ(replace_new_code_points(old, storage).data(), old.data());
  EXPECT_EQ(replace_new_code_points("", storage), "");
  // U+31350 is a letter of Unicode 15, U+1FA77 a symbol of Unicode 15, U+0897 a mark of Unicode 16.
  const std::string text = "x\U00031350y\U0001FA77z\u0897\U00031350";
  const std::string replaced(replace_new_code_points(text, storage));
  EXPECT_EQ(replaced, "x\U0003134Ay\U0001FA74z\u08D4\U0003134A");
}

TEST(ReplaceNewCodePoints, a_stand_in_is_older_and_of_the_same_class_and_length) {
  const CodePointClasses& classes = CodePointClasses::get();
  std::string storage;
  size_t replaced = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const auto stand_in = replace_new_code_points(text, storage);
    ASSERT_EQ(stand_in.size(), text.size());
    const char32_t other = code_point_at(stand_in, 0).value;
    ASSERT_EQ(classes.category(other), classes.category(c)) << std::hex << static_cast<uint32_t>(c);
    ASSERT_FALSE(classes.is_new(other));
    ASSERT_EQ(other != c, classes.is_new(c));
    replaced += other != c;
  }
  EXPECT_EQ(replaced, 10301u);
}

// utf8proc 2.8 drops U+11A7 behind a syllable. Trailing consonants begin with U+11A8.
TEST(NormalizeNfc, composes_hangul_with_trailing_consonants_only) {
  std::string storage;
  EXPECT_EQ(normalize_nfc("\u1100\u1161\u11A8", storage), "\uAC01");
  EXPECT_EQ(normalize_nfc("\u1100\u1161\u11A7", storage), "\uAC00\u11A7");
  EXPECT_EQ(normalize_nfc("e\u0301\uAC00\u11A7", storage), "\u00E9\uAC00\u11A7");
}

}  // namespace
}  // namespace dtopp::data

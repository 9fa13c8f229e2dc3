#include "dtopp/serve/completion.h"

#include <gtest/gtest.h>

namespace dtopp::serve {
namespace {

// All text that is shown of `text`, added in parts of `size` bytes.
std::string shown(const std::string& text, const std::vector<std::string>& stops, size_t size) {
  StopStrings strings(stops);
  std::string out;
  for (size_t i = 0; i < text.size(); i += size) out += strings.add(text.substr(i, size));
  return out + strings.rest();
}

TEST(StopStrings, end_the_text_before_the_first_one_in_parts_of_any_size) {
  const std::string text = "one\n\ntwo aab aaab END three";
  for (const auto& stops : std::vector<std::vector<std::string>>{
           {}, {"END"}, {"aaab", "END"}, {"\n\n", "two"}, {"aaaab"}, {"three?"}, {"e", "END"}, {"one"}}) {
    size_t end = text.size();
    for (const std::string& stop : stops) end = std::min(end, text.find(stop));
    for (size_t size = 1; size <= text.size(); ++size)
      EXPECT_EQ(shown(text, stops, size), text.substr(0, end)) << size;
  }
}

TEST(StopStrings, hold_back_only_what_may_become_one) {
  StopStrings strings({"END"});
  EXPECT_EQ(strings.add("the E"), "the ");
  EXPECT_EQ(strings.add("N"), "");
  EXPECT_EQ(strings.add("E"), "EN");
  EXPECT_EQ(strings.rest(), "E");
  EXPECT_FALSE(strings.found());
  EXPECT_EQ(strings.add("END and more"), "");
  EXPECT_TRUE(strings.found());
  EXPECT_EQ(strings.add("x"), "");
  EXPECT_EQ(strings.rest(), "");
}

}  // namespace

}  // namespace dtopp::serve

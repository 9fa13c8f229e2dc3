#include "dtopp/data/text/pre_tokenizer.h"

namespace dtopp::data {
namespace {

// Returns the length of the contraction ('s 't 'm 'd 're 've 'll) whose apostrophe is at `begin`, or 0.
size_t contraction_length(std::string_view text, size_t begin) {
  const auto at = [&](size_t i) { return begin + i < text.size() ? text[begin + i] : '\0'; };
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return at(2) == 'e' ? 3 : 0;
    case 'l':
      return at(2) == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

// Returns the end of the run of `category` that continues at `offset`.
size_t skip_category(std::string_view text, size_t offset, Category category,
                     const CodePointClasses& classes) {
  while (offset < text.size()) {
    const CodePoint c = code_point_at(text, offset);
    if (classes.category(c.value) != category) break;
    offset += c.bytes;
  }
  return offset;
}

}  // namespace

size_t find_word_end(std::string_view text, size_t begin, const CodePointClasses& classes) {
  if (text[begin] == '\'') {
    const size_t length = contraction_length(text, begin);
    if (length > 0) return begin + length;
  }
  const CodePoint first = code_point_at(text, begin);
  const Category category = classes.category(first.value);
  const size_t second = begin + first.bytes;
  if (category != Category::kSpace) return skip_category(text, second, category, classes);
  if (first.value == ' ' && second < text.size()) {
    const CodePoint next = code_point_at(text, second);
    const Category next_category = classes.category(next.value);
    if (next_category != Category::kSpace)
      return skip_category(text, second + next.bytes, next_category, classes);
  }
  const size_t end = skip_category(text, second, Category::kSpace, classes);
  if (end == text.size()) return end;
  // The last of several spaces begins the next word, because \s+(?!\S) does not match it.
  const size_t last = end - code_point_before(text, end).bytes;
  return last > begin ? last : end;
}

}  // namespace dtopp::data

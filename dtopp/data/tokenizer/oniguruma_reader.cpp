#include "dtopp/data/tokenizer/oniguruma_reader.h"

#include <cctype>
#include <cstdint>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
namespace {

// Oniguruma's \s and \w, in a class. PCRE2's \s has U+180E too, and its \w lacks marks.
constexpr std::string_view kSpaces = "\\x{9}-\\x{d}\\x{85}\\p{Z}";
constexpr std::string_view kWords = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

}  // namespace

void OnigurumaReader::fail(size_t at, const std::string& what) const {
  throw DataError("byte " + std::to_string(at) + " of the pattern: " + what);
}

bool OnigurumaReader::take(std::string_view text) {
  if (!follows(text)) return false;
  next_ += text.size();
  return true;
}

OnigurumaReader::Member OnigurumaReader::read_member() {
  if (next_ == pattern_.size()) fail(next_, "a class that does not end");
  if (!follows("\\")) {
    const CodePoint c = code_point_at(pattern_, next_);
    next_ += c.bytes;
    return {c.value, {}};
  }
  const size_t at = next_++;
  if (next_ == pattern_.size()) fail(at, "a backslash at the end");
  const CodePoint escaped = code_point_at(pattern_, next_);
  next_ += escaped.bytes;
  switch (escaped.value) {
    case 't':
      return {'\t', {}};
    case 'n':
      return {'\n', {}};
    case 'v':
      return {'\v', {}};
    case 'f':
      return {'\f', {}};
    case 'r':
      return {'\r', {}};
    case 's':
      return {0, std::string(kSpaces)};
    case 'S':
      return {0, "\\S\\x{180e}"};
    case 'd':
      return {0, "\\p{Nd}"};
    case 'D':
      return {0, "\\P{Nd}"};
    case 'w':
      return {0, std::string(kWords)};
    case 'p':
    case 'P':
      return {0, property(at, escaped.value == 'P')};
    case 'u':
      return {hexadecimal(at, 4), {}};
    case 'x':
      return {hexadecimal(at, 2), {}};
    default:
      if (is_ascii_letter(escaped.value) || is_ascii_digit(escaped.value))
        fail(at, "this escape is not supported");
      return {escaped.value, {}};
  }
}

std::string OnigurumaReader::property(size_t at, bool negated) {
  const size_t end = pattern_.find('}', next_);
  if (!take("{") || end == pattern_.npos) fail(at, "a property without its {name} is not supported");
  if (take("^")) negated = !negated;
  const std::string name(pattern_.substr(next_, end - next_));
  next_ = end + 1;
  for (const char c : name)
    if (!is_ascii_letter(static_cast<uint8_t>(c)) && c != '_') fail(at, "this property is not supported");
  return std::string(negated ? "\\P{" : "\\p{") + (name.size() > 2 ? "sc:" : "") + name + "}";
}

char32_t OnigurumaReader::hexadecimal(size_t at, size_t digits) {
  const bool braces = digits == 2 && take("{");
  const size_t begin = next_;
  char32_t value = 0;
  while (next_ < pattern_.size() && (braces || next_ - begin < digits) &&
         std::isxdigit(static_cast<uint8_t>(pattern_[next_])) != 0 && value <= 0x10FFFF) {
    const char c = pattern_[next_++];
    value = value * 16 +
            static_cast<char32_t>(is_ascii_digit(static_cast<uint8_t>(c)) ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  const bool complete = braces ? next_ > begin && take("}") : next_ - begin == digits;
  // \x80 to \xff are bytes for Oniguruma, not code points.
  const bool is_byte = digits == 2 && !braces && value >= 0x80;
  if (!complete || is_byte || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
    fail(at, "this character code is not supported");
  return value;
}

}  // namespace dtopp::data

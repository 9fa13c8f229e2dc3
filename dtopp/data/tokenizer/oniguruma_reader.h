// Reads the characters and sets of an Oniguruma pattern, one after another.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dtopp::data {

inline bool is_ascii_letter(char32_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
inline bool is_ascii_digit(char32_t c) { return c >= '0' && c <= '9'; }

class OnigurumaReader {
 public:
  explicit OnigurumaReader(std::string_view pattern) : pattern_(pattern) {}

 protected:
  // A member of a class: one code point, or a set, which is already written for PCRE2.
  struct Member {
    char32_t value = 0;
    std::optional<std::string> set;
  };

  // Throws DataError, naming the construct `what` and its byte.
  [[noreturn]] void fail(size_t at, const std::string& what) const;
  bool follows(std::string_view text) const { return pattern_.substr(next_).starts_with(text); }
  // Skips `text` if it follows, and returns true then.
  bool take(std::string_view text);
  // Reads a character, an escape or a property.
  Member read_member();

  std::string_view pattern_;
  size_t next_ = 0;  // in pattern_

 private:
  // After \p: {Name} or {^Name}, a general category or a script.
  std::string property(size_t at, bool negated);
  // After \x or \u: `digits` digits, or any number of them in braces.
  char32_t hexadecimal(size_t at, size_t digits);
};

}  // namespace dtopp::data

// Code points as Hugging Face `tokenizers` sees them: UTF-8, character classes and the NFC normal form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp {

// Made by scripts/make_unicode_table.py. Each run of code points of one class: first << 8 | class bits.
extern const uint32_t kUnicodeTable[];
extern const size_t kUnicodeTableSize;

// The class bits of every code point. The low two tell \p{L}, \p{N} and \s apart.
enum class Category : uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kSpace = 3 };

class CodePointClasses {
 public:
  // Expanded from the runs once; immutable and shared.
  static const CodePointClasses& get();

  Category category(char32_t c) const { return static_cast<Category>(bits_[c] & 3); }
  bool is_space(char32_t c) const { return category(c) == Category::kSpace; }
  bool is_word(char32_t c) const { return (bits_[c] & 4) != 0; }  // \w
  // NFC may change or move this code point or join it to what stands before it.
  bool is_nfc_active(char32_t c) const { return (bits_[c] & 8) != 0; }

 private:
  CodePointClasses();
  std::vector<uint8_t> bits_;
};

struct CodePoint {
  char32_t value;
  uint32_t bytes;
};

// The code point at `offset` of valid UTF-8.
inline CodePoint code_point_at(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[offset + i]); };
  const auto tail = [&](size_t i) { return static_cast<char32_t>(byte(i) & 0x3F); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | tail(1), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | tail(1) << 6 | tail(2), 3};
  return {(first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
}

// The code point that ends before `end` (> 0) of valid UTF-8.
inline CodePoint code_point_before(std::string_view text, size_t end) {
  size_t start = end - 1;
  while ((static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
  return code_point_at(text, start);
}

void append_utf8(std::string& text, char32_t c);

// The one code point that is the lower case of `c`, or `c`.
char32_t lower_case(char32_t c);

// The offset of the first byte that is not part of valid UTF-8.
std::optional<size_t> find_invalid_utf8(std::string_view text);
// Each maximal invalid part becomes one U+FFFD, as in Rust's String::from_utf8_lossy.
std::string replace_invalid_utf8(std::string_view bytes);

// The NFC form of valid UTF-8: `text` itself where it is in that form already (the usual case), else a string
// built in `storage`.
std::string_view normalize_nfc(std::string_view text, std::string& storage);

}  // namespace dtopp

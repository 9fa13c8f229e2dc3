#include "dtopp/data/text/unicode.h"

#include <algorithm>

#include <utf8proc.h>

namespace dtopp::data {
namespace {

// A part of a text: the bytes of one code point if `valid`, else of a maximal invalid part.
struct Utf8Part {
  size_t bytes;
  bool valid;
};

Utf8Part utf8_part_at(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[offset + i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {1, true};
  if (first < 0xC2 || first > 0xF4) return {1, false};
  const size_t bytes = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The range of the second byte excludes overlong forms, surrogates and code points above U+10FFFF.
  const uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < bytes; ++i) {
    const bool in_range =
        offset + i < text.size() && byte(i) >= (i == 1 ? low : 0x80) && byte(i) <= (i == 1 ? high : 0xBF);
    if (!in_range) return {i, false};
  }
  return {bytes, true};
}

}  // namespace

const CodePointClasses& CodePointClasses::get() {
  static const CodePointClasses classes;
  return classes;
}

CodePointClasses::CodePointClasses() : bits_(0x110000) {
  for (size_t run = 0; run < kUnicodeTableSize; ++run) {
    const size_t begin = kUnicodeTable[run] >> 8;
    const size_t end = run + 1 < kUnicodeTableSize ? kUnicodeTable[run + 1] >> 8 : bits_.size();
    std::fill(bits_.begin() + begin, bits_.begin() + end, static_cast<uint8_t>(kUnicodeTable[run] & 0xFF));
  }
}

void append_utf8(std::string& text, char32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += {static_cast<char>(0xC0 | c >> 6), tail(0)};
  } else if (c < 0x10000) {
    text += {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  } else {
    text += {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
  }
}

std::string_view replace_new_code_points(std::string_view text, std::string& storage) {
  const CodePointClasses& classes = CodePointClasses::get();
  const auto find_new = [&](size_t offset) {
    return find_code_point(text, offset, [&](char32_t c) { return classes.is_new(c); });
  };
  size_t found = find_new(0);
  if (found == text.size()) return text;
  storage.clear();
  for (size_t copied = 0;; found = find_new(copied)) {
    storage += text.substr(copied, found - copied);
    if (found == text.size()) return storage;
    const CodePoint c = code_point_at(text, found);
    const auto run = std::partition_point(kNewCodePoints, kNewCodePoints + kNewCodePointsSize,
                                          [&](const NewCodePoints& r) { return r.last < c.value; });
    append_utf8(storage, run->stand_in);
    copied = found + c.bytes;
  }
}

char32_t lower_case(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Part part = utf8_part_at(text, i);
    if (!part.valid) return i;
    i += part.bytes;
  }
  return std::nullopt;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Part part = utf8_part_at(bytes, i);
    text += part.valid ? bytes.substr(i, part.bytes) : std::string_view("\uFFFD");
    i += part.bytes;
  }
  return text;
}

}  // namespace dtopp::data

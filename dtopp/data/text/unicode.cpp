#include "dtopp/data/text/unicode.h"

#include <algorithm>
#include <array>
#include <span>

#include <utf8proc.h>

#include "dtopp/base/errors.h"

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

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

void require_success(utf8proc_ssize_t count) {
  if (count < 0) throw DataError("the text cannot be normalized to NFC: ", utf8proc_errmsg(count));
}

// Appends the canonical decomposition of one code point. No code point has more than four parts.
void append_decomposition(std::vector<utf8proc_int32_t>& out, char32_t c) {
  std::array<utf8proc_int32_t, 16> parts;
  int last_boundary = 0;
  const auto count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                              static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE), &last_boundary);
  require_success(count);
  out.insert(out.end(), parts.begin(), parts.begin() + std::min<utf8proc_ssize_t>(count, parts.size()));
}

// Sorts each run of marks by combining class, stably. (utf8proc's own ordering takes quadratic time.)
void order_marks(std::vector<utf8proc_int32_t>& code_points) {
  for (auto begin = code_points.begin(); begin != code_points.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, code_points.end(), [](auto c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

void append_nfc(std::string& out, std::string_view segment) {
  std::vector<utf8proc_int32_t> code_points;
  for (size_t i = 0; i < segment.size();) {
    const CodePoint c = code_point_at(segment, i);
    append_decomposition(code_points, c.value);
    i += c.bytes;
  }
  order_marks(code_points);
  const auto count =
      utf8proc_normalize_utf32(code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  require_success(count);
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(code_points[i]));
}

}  // namespace

const CodePointClasses& CodePointClasses::get() {
  static const CodePointClasses classes;
  return classes;
}

CodePointClasses::CodePointClasses() {
  for (const uint32_t run : std::span(kUnicodeTable, kUnicodeTableSize))
    bits_.insert(bits_.end(), run >> 5, static_cast<uint8_t>(run & 31));
}

void append_utf8(std::string& text, char32_t c) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes.data());
  text.append(bytes.begin(), bytes.begin() + count);
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
    const auto run =
        std::partition_point(kNewCodePoints, kNewCodePoints + kNewCodePointsSize,
                             [&](const NewCodePoints& r) { return r.first + r.count <= c.value; });
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

// Normalizes text to NFC.
//
// Only the ranges around code points that NFC may change go through utf8proc; the rest is copied. A combining
// mark that is newer than the Unicode version of `tokenizers` is an ordinary character there. utf8proc would
// treat it as a mark, so it must not reach utf8proc.

std::string_view normalize_nfc(std::string_view text, std::string& storage) {
  const auto is_active = [&classes = CodePointClasses::get()](char32_t c) {
    return classes.is_nfc_active(c);
  };
  size_t active = find_code_point(text, 0, is_active);
  if (active == text.size()) return text;
  storage.clear();
  storage.reserve(text.size());
  size_t copied = 0;
  while (active < text.size()) {
    size_t begin = active;
    if (begin > copied) {  // the starter before the range may compose with it
      const CodePoint starter = code_point_before(text, begin);
      if (combining_class(static_cast<utf8proc_int32_t>(starter.value)) == 0) begin -= starter.bytes;
    }
    const size_t end = skip_code_points(text, active, is_active);
    storage += text.substr(copied, begin - copied);
    append_nfc(storage, text.substr(begin, end - begin));
    copied = end;
    active = find_code_point(text, end, is_active);
  }
  storage += text.substr(copied);
  return storage;
}

}  // namespace dtopp::data

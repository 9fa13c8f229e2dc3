// Normalizes text to NFC.
//
// Only the ranges around code points that NFC may change go through utf8proc; the rest is copied. A combining
// mark that is newer than the Unicode version of `tokenizers` is an ordinary character there. utf8proc would
// treat it as a mark, so it must not reach utf8proc.
#include <algorithm>
#include <array>
#include <vector>

#include <utf8proc.h>

#include "dtopp/base/errors.h"
#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
namespace {

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

void require_success(utf8proc_ssize_t count) {
  if (count < 0)
    throw DataError(std::string("the text cannot be normalized to NFC: ") + utf8proc_errmsg(count));
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

size_t find_nfc_active(std::string_view text, size_t offset) {
  const CodePointClasses& classes = CodePointClasses::get();
  return find_code_point(text, offset, [&](char32_t c) { return classes.is_nfc_active(c); });
}

// Returns the end of the run of such code points that begins at `offset`.
size_t skip_nfc_active(std::string_view text, size_t offset) {
  while (offset < text.size()) {
    const CodePoint c = code_point_at(text, offset);
    if (!CodePointClasses::get().is_nfc_active(c.value)) break;
    offset += c.bytes;
  }
  return offset;
}

}  // namespace

std::string_view normalize_nfc(std::string_view text, std::string& storage) {
  size_t active = find_nfc_active(text, 0);
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
    const size_t end = skip_nfc_active(text, active);
    storage += text.substr(copied, begin - copied);
    append_nfc(storage, text.substr(begin, end - begin));
    copied = end;
    active = find_nfc_active(text, end);
  }
  storage += text.substr(copied);
  return storage;
}

}  // namespace dtopp::data

#include "dtopp/data/tokenizer/space_marks.h"

#include <algorithm>
#include <optional>

#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
namespace {

constexpr std::string_view kHexDigits = "0123456789ABCDEF";

std::optional<uint8_t> digit(char c) {
  if (c >= 'a' && c <= 'f') c = static_cast<char>(c - 'a' + 'A');
  const size_t value = kHexDigits.find(c);
  return value == std::string_view::npos ? std::nullopt : std::optional(static_cast<uint8_t>(value));
}

std::optional<uint8_t> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const auto high = digit(token[3]), low = digit(token[4]);
  if (!high || !low) return std::nullopt;
  return static_cast<uint8_t>(*high << 4 | *low);
}

void append_with_spaces(std::string_view token, std::string& text) {
  for (size_t begin = 0; begin < token.size();) {
    const size_t mark = std::min(token.find(kSpaceMark, begin), token.size());
    text += token.substr(begin, mark - begin);
    if (mark < token.size()) text += ' ';
    begin = mark + kSpaceMark.size();
  }
}

void append_bytes(const std::string& bytes, std::string& text) {
  if (!find_invalid_utf8(bytes)) {
    text += bytes;
    return;
  }
  for (size_t i = 0; i < bytes.size(); ++i) text += "\uFFFD";
}

}  // namespace

void mark_spaces(std::string_view piece, bool at_begin, FirstMark first, std::string& marked) {
  const bool is_marked = piece.starts_with(' ') || piece.starts_with(kSpaceMark);
  const bool adds =
      first == FirstMark::kAll ||
      (!is_marked && (first == FirstMark::kUnmarked || (first == FirstMark::kUnmarkedAtBegin && at_begin)));
  marked.assign(adds ? kSpaceMark : "");
  for (const char c : piece) {
    if (c == ' ')
      marked += kSpaceMark;
    else
      marked += c;
  }
}

size_t find_marked_end(std::string_view text, size_t begin) {
  return std::min(text.find(kSpaceMark, begin + 1), text.size());
}

std::string byte_token(uint8_t byte) {
  return {'<', '0', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 15], '>'};
}

std::string unmark(std::span<const std::string* const> tokens) {
  std::string text, bytes;
  for (const std::string* token : tokens) {
    if (const auto byte = byte_of(*token)) {
      bytes += static_cast<char>(*byte);
      continue;
    }
    append_bytes(bytes, text);
    bytes.clear();
    append_with_spaces(*token, text);
  }
  append_bytes(bytes, text);
  return text;
}

int64_t marked_bytes(std::string_view token) {
  if (byte_of(token)) return 1;
  std::string text;
  append_with_spaces(token, text);
  return static_cast<int64_t>(text.size());
}

}  // namespace dtopp::data

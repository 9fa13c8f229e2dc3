// Writes spaces as the mark U+2581 ▁, as SentencePiece does, and reads them back. Bytes of characters that
// the vocabulary lacks have tokens like <0x0A>.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dtopp::data {

inline constexpr std::string_view kSpaceMark = "\u2581";

// The pieces of a text that begin with a further mark: none; all; those that do not begin with a space or a
// mark; of those, the one at the text's begin.
enum class FirstMark { kNone, kAll, kUnmarked, kUnmarkedAtBegin };

struct SpaceMarks {
  FirstMark first = FirstMark::kNone;
  bool split = false;  // each mark begins a word; else a piece is one word
  bool decodes =
      false;  // decoding turns marks to spaces and <0x0A> to bytes; else it joins tokens with spaces
  bool strips_first = false;  // decoding drops a space at the begin
};

// Writes `piece` with marks to `marked`. at_begin: the piece begins the text.
void mark_spaces(std::string_view piece, bool at_begin, FirstMark first, std::string& marked);

// Returns the end of the word that begins at `begin` (< text.size()): the next mark, or the end.
size_t find_marked_end(std::string_view text, size_t begin);

// "<0x0A>"
std::string byte_token(uint8_t byte);

// Returns the text of tokens: marks become spaces. A run of byte tokens that is not valid UTF-8 becomes a
// U+FFFD per byte.
std::string unmark(std::span<const std::string* const> tokens);

// The bytes that the token adds to such a text.
int64_t marked_bytes(std::string_view token);

}  // namespace dtopp::data

// Finds added tokens in text: leftmost, the longest of those, never overlapping; then single_word, lstrip and
// rstrip apply, as in Hugging Face `tokenizers`.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/data/text/unicode.h"
#include "dtopp/data/tokenizer/tokenizer_json.h"

namespace dtopp {

// A stretch of a text: an added token, or text between (id -1).
struct TextSegment {
  int32_t id;
  size_t begin;
  size_t end;
};

class AddedTokenMatcher {
 public:
  struct Pattern {
    std::string text;  // not empty
    int32_t id;
    bool single_word;
    bool lstrip;
    bool rstrip;
  };

  // Of patterns with the same text the one with the lowest id counts.
  explicit AddedTokenMatcher(std::vector<Pattern> patterns);

  // Appends the segments of `text` (valid UTF-8), none of them empty. A token that an rstrip before it ran
  // over is still reported, so segments may overlap.
  void split(std::string_view text, std::vector<TextSegment>& segments) const;

 private:
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  const Pattern* longest_at(std::string_view text, size_t offset) const;
  bool may_start(std::string_view text, size_t offset) const;

  std::vector<Pattern> patterns_;       // by text
  std::array<Range, 256> first_bytes_;  // the patterns that begin with a byte
  std::bitset<65536> first_pairs_;      // first byte << 8 | second byte; all second bytes of a lone byte
};

}  // namespace dtopp

// Holds the added tokens of a tokenizer, with the ids and spellings that Hugging Face assigns when it loads
// them.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/data/text/tokenizer_json.h"
#include "dtopp/data/text/unicode.h"
#include "dtopp/data/text/vocabulary.h"

namespace dtopp::data {

// Splits text at added tokens, as Hugging Face `tokenizers` does.
//
// The leftmost match wins, and the longest of those that begin there. Matches never overlap. The flags
// single_word, lstrip and rstrip apply to each match afterwards.

// A byte range of a text: an added token, or the text between two of them (id -1).
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

  // If several patterns have the same text, the one with the lowest id is kept.
  explicit AddedTokenMatcher(std::vector<Pattern> patterns);

  // Appends the segments of `text` (valid UTF-8); no segment is empty. A token inside the spaces that an
  // earlier rstrip covers is still reported, so segments may overlap.
  void split(std::string_view text, std::vector<TextSegment>& segments) const;

 private:
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  const Pattern* longest_at(std::string_view text, size_t offset) const;
  bool may_start(std::string_view text, size_t offset) const;

  std::vector<Pattern> patterns_;       // sorted by text
  std::array<Range, 256> first_bytes_;  // range in patterns_ per first byte
  // First two bytes of a pattern, as first << 8 | second. A one-byte pattern sets all second bytes.
  std::bitset<65536> first_pairs_;
};

struct AddedTokens {
  struct Entry {
    AddedToken token;
    std::string spelling;  // the decoded text: content, or its NFC form if the token is normalized
  };
  std::map<int32_t, Entry> by_id;
  std::map<std::string, int32_t, std::less<>> ids;
  std::set<std::string, std::less<>> special;
};

// Assigns ids as Hugging Face does and ignores the ids in the file. A token of the vocabulary keeps its id
// there; the others are numbered from the vocabulary's size. `file` is the name in error messages.
AddedTokens assign_added_tokens(const TokenizerSpec& spec, const Vocabulary& vocabulary,
                                const std::string& file);

// Finds the tokens that are matched in normalized text, or those matched in raw text.
AddedTokenMatcher make_matcher(const AddedTokens& added, bool normalized);

}  // namespace dtopp::data

// Kinds of tokens in a text, by which the experts they use are compared.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtopp/data/tokenizer/tokenizer.h"

namespace dtopp {

// One way to tell tokens apart.
struct TokenKinds {
  std::string by;                  // "frequency", "position", "part_of_word"
  std::vector<std::string> names;  // of the kinds
  std::vector<uint8_t> kind;       // index of each token's kind, in the order of the text
};

// By how often a token's id occurs in this text (its rank among all ids), by its position in a window of
// `sequence_length` (powers of two), and by the part of a word it spells: a word by itself, its beginning,
// the rest of it, a number, punctuation, white space, or nothing (<|endoftext|> and other special tokens).
std::vector<TokenKinds> find_token_kinds(std::span<const int64_t> ids, const Tokenizer& tokenizer,
                                         int64_t sequence_length);

}  // namespace dtopp

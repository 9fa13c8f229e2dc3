// Classifies the tokens of a text into kinds, to compare the experts that each kind uses.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtopp/data/text/tokenizer.h"

namespace dtopp::tasks {

// One classification of the tokens of a text.
struct TokenKinds {
  std::string by;                  // "frequency", "position", "part_of_word"
  std::vector<std::string> names;  // name of each kind
  std::vector<uint8_t> kind;       // per token, in the order of the text: the index of its kind
};

// Three classifications:
//
// - by how often a token's id occurs in this text (its rank among all ids);
// - by its position in a sequence of `sequence_length` tokens (powers of two); sequences begin anew at each
// of
//   `begins`;
// - by the part of a word that it spells: a whole word, its beginning, the rest of it, a number, punctuation,
//   white space, or nothing (<|endoftext|> and other special tokens).
std::vector<TokenKinds> find_token_kinds(std::span<const int64_t> ids, const data::Tokenizer& tokenizer,
                                         int64_t sequence_length, std::span<const uint64_t> begins = {});

}  // namespace dtopp::tasks

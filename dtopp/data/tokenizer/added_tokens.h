// Holds the added tokens of a tokenizer, with the ids and spellings that Hugging Face assigns when it loads
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "dtopp/data/tokenizer/added_token_matcher.h"
#include "dtopp/data/tokenizer/tokenizer_json.h"
#include "dtopp/data/tokenizer/vocabulary.h"

namespace dtopp::data {

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

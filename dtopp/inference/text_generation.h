// Encodes the prompts of `dtopp generate` and decodes the generated ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dtopp/data/text/tokenizer.h"

namespace dtopp::inference {

// Returns the non-empty lines of a file, which end with \n or \r\n. Throws DataError if it cannot be read or
// has none.
std::vector<std::string> read_prompts(const std::filesystem::path& path);

struct EncodedPrompts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<int64_t> room;  // maximum of new tokens: `max_tokens`, limited by the sequence length
};

// Encodes the prompts. Throws UsageError if a prompt fills the sequence length.
EncodedPrompts encode_prompts(const std::vector<std::string>& prompts, const data::Tokenizer& tokenizer,
                              int64_t sequence_length, int64_t max_tokens);

// Decodes a stream of ids into text. A character may span several tokens; text is returned once it is
// complete.
class TextStream {
 public:
  explicit TextStream(const data::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Adds an id and returns the new text. The text is empty while its last character may be incomplete.
  std::string add(int32_t id);
  // Returns the text that add() holds back, possibly with an incomplete character.
  std::string rest() const { return tokenizer_.decode_generated(pending_); }

 private:
  const data::Tokenizer& tokenizer_;
  std::vector<int32_t> pending_;
};

}  // namespace dtopp::inference

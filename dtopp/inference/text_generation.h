// Text in, text out: the prompts of `dtopp generate` as ids, and the ids it makes as text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dtopp/data/tokenizer/tokenizer.h"

namespace dtopp {

// The lines of a file that are not empty. DataError where it cannot be read or holds none.
std::vector<std::string> read_prompts(const std::filesystem::path& path);

struct EncodedPrompts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<int64_t> room;  // new tokens: `max_tokens`, or what the model's sequence length leaves
};

// UsageError where a prompt leaves no room.
EncodedPrompts encode_prompts(const std::vector<std::string>& prompts, const Tokenizer& tokenizer,
                              int64_t sequence_length, int64_t max_tokens);

// The text of a growing list of ids, given out as far as it is certain: a character may take several tokens.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // What the text gains by one more id: nothing while its last character may still be incomplete.
  std::string add(int32_t id);
  // What is held back, as it stands.
  std::string rest() const { return tokenizer_.decode_generated(pending_); }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> pending_;
};

}  // namespace dtopp

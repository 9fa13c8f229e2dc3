// Encodes the prompts of `dtopp generate` and decodes the generated ids.
#pragma once

#include "dtopp/data/text/tokenizer.h"
#include "dtopp/inference/generator.h"

namespace dtopp::inference {
// Returns the non-empty lines of a file, which end with \n or \r\n. Throws DataError if it cannot be read or
// has none.
std::vector<std::string> read_prompts(const fs::path& path);

struct EncodedPrompts {
  std::vector<std::vector<int32_t>> ids;
  std::vector<int64_t> max_new_tokens;  // maximum of new tokens: `max_tokens`, limited by the sequence length
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

// A text that the user and the model extend in turn (`dtopp generate --interactive`).
//
// The key-value cache is kept from one piece to the next. A change of the sampling options or of the model's
// routing, which the owner of `model` announces with recompute(), recomputes it.
class TextSession {
 public:
  // `model` and `tokenizer` must outlive the object. A piece has at most `max_tokens` tokens, and at most
  // half of the sequence length.
  TextSession(const InferenceModel& model, const data::Tokenizer& tokenizer, const SamplingOptions& options,
              int64_t max_tokens);

  // Adds the user's text. Throws DataError if it is not valid UTF-8; the text is then unchanged.
  void add(std::string_view text);

  // Begins a piece of the model. The oldest tokens are dropped for it. An empty text begins with the
  // end-of-text token, as a document does in training.
  //
  // Returns: the number of dropped tokens
  int64_t begin_piece();
  // Returns the next token of the piece; none after the last one. The last one may be the end of text.
  std::optional<GeneratedToken> step();

  // Removes the last piece, so that the next one takes its place with other random numbers. Returns false if
  // there is none.
  bool remove_piece();
  void clear();  // begins an empty text
  void set_temperature(double temperature);
  void recompute() { generation_.reset(); }

 private:
  const InferenceModel& model_;
  const data::Tokenizer& tokenizer_;
  SamplingOptions options_;
  int64_t max_tokens_;
  std::vector<int32_t> ids_;              // the whole text
  size_t computed_ = 0;                   // ids that generation_ has received or generated
  std::optional<size_t> piece_;           // where the last piece begins
  std::optional<Generation> generation_;  // of ids_, with the cache
};

}  // namespace dtopp::inference

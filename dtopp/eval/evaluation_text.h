// Reads the token ids of an evaluation text, from a text file or from token data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "dtopp/data/tokenizer/tokenizer.h"
#include "dtopp/data/tokens/token_file.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::eval {

// Returns whether `path` names token data: a folder, a .npy file or a .bin/.idx prefix. Every other file is
// text.
bool is_token_data(const std::filesystem::path& path);

class EvaluationText {
 public:
  // Opens token data. Throws DataError if they cannot be read; UsageError if an id is outside the model's
  // vocabulary.
  EvaluationText(const std::filesystem::path& path, int64_t vocab_size);
  // Encodes a text file. Throws DataError if it cannot be read.
  EvaluationText(const std::filesystem::path& path, const data::Tokenizer& tokenizer);

  // Puts an id in front of the text, so that the first id of the text can be predicted.
  void begin_with(int64_t id) { first_ = id; }

  uint64_t size() const {
    return (first_ ? 1 : 0) + (stream_ ? stream_->size() : ids_.size());
  }  // number of ids
  void read(uint64_t offset, std::span<int64_t> out) const;

  // Returns the first windows of the text, on which the threshold p is solved (expert_budget.h).
  at::Tensor beginning(int64_t sequence_length) const;

 private:
  std::filesystem::path path_;
  std::optional<int64_t> first_;
  std::optional<data::TokenStream> stream_;
  std::vector<int64_t> ids_;
};

}  // namespace dtopp::eval

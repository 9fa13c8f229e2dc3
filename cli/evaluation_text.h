// The text that `dtopp evaluate` measures a model on: a text file, or token data.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/evaluate.h"
#include "dtopp/data/token_file.h"

namespace dtopp::cli {

class EvaluationText {
 public:
  // Reads --text. DataError where it cannot be read or holds ids outside the model's vocabulary.
  EvaluationText(const EvaluateOptions& options, const Checkpoint& checkpoint, int64_t vocab_size);

  uint64_t size() const { return stream_ ? stream_->size() : ids_.size(); }  // ids
  void read(uint64_t offset, std::span<int64_t> out) const;

  // Windows to solve p on: those of --target-text where it is named, else the beginning of this text.
  at::Tensor windows_to_solve_on(const EvaluateOptions& options, const Checkpoint& checkpoint,
                                 const ModelConfig& config) const;
  // Solves p for --target-experts where that is given.
  void meet_target(const EvaluateOptions& options, const Checkpoint& checkpoint, InferenceModel& model) const;

 private:
  std::optional<TokenStream> stream_;
  std::vector<int64_t> ids_;
};

}  // namespace dtopp::cli

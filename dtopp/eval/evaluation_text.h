// The text that a model is measured on: a text file, or token data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "dtopp/data/tokenizer/tokenizer.h"
#include "dtopp/data/tokens/token_file.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp {

class EvaluationText {
 public:
  // A folder, .npy file or .bin/.idx prefix is token data; every other file is text, for which alone
  // `load_tokenizer` is called. DataError where it cannot be read, UsageError where ids are outside the
  // model's vocabulary.
  EvaluationText(const std::filesystem::path& path, int64_t vocab_size,
                 const std::function<Tokenizer()>& load_tokenizer);

  uint64_t size() const { return stream_ ? stream_->size() : ids_.size(); }  // ids
  void read(uint64_t offset, std::span<int64_t> out) const;

  // Its beginning, to solve p on (expert_budget.h).
  at::Tensor beginning(int64_t sequence_length) const;

 private:
  std::filesystem::path path_;
  std::optional<TokenStream> stream_;
  std::vector<int64_t> ids_;
};

}  // namespace dtopp

// Reads the token ids of an evaluation text, from text files or token data. Each of them is a source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "dtopp/data/text/tokenizer.h"
#include "dtopp/data/text/token_file.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::eval {

// Returns whether `path` names token data: a folder, a .npy file or a .bin/.idx prefix. Every other file is
// text.
bool is_token_data(const std::filesystem::path& path);

// Ids that windows cover: the model reads those from `begin` on and predicts those up to `last`.
struct TextSegment {
  uint64_t begin, last;
};

class EvaluationText {
 public:
  // Opens token data. Throws DataError if they cannot be read; UsageError if an id is outside the model's
  // vocabulary.
  EvaluationText(const std::filesystem::path& path, int64_t vocab_size);
  // Encodes a text file. Throws DataError if it cannot be read.
  EvaluationText(const std::filesystem::path& path, const data::Tokenizer& tokenizer);

  // Appends the sources of another text.
  void append(EvaluationText other);
  // Puts an id in front of a text of one source, so that the first id of the text can be predicted.
  void begin_with(int64_t id) { first_ = id; }

  uint64_t size() const;  // number of ids
  void read(uint64_t offset, std::span<int64_t> out) const;

  // The ids of each source. Throws DataError if one has no id to predict.
  std::vector<TextSegment> segments() const;
  // The name of each source, from its path. Throws UsageError if a path occurs twice.
  std::vector<std::string> source_names() const;

  // Returns the first windows of each source, on which the threshold p is solved (expert_budget.h).
  at::Tensor beginning(int64_t sequence_length) const;

 private:
  struct Source {
    std::filesystem::path path;
    std::optional<data::TokenStream> stream{};
    std::vector<int64_t> ids{};

    uint64_t size() const { return stream ? stream->size() : ids.size(); }
    void read(uint64_t offset, std::span<int64_t> out) const;
  };

  std::optional<int64_t> first_;
  std::vector<Source> sources_;
};

}  // namespace dtopp::eval

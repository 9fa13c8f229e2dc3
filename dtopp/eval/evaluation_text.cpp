#include "dtopp/eval/evaluation_text.h"

#include <algorithm>

#include "dtopp/base/path_kind.h"
#include "dtopp/data/text_preparation/encode_file.h"
#include "dtopp/inference/expert_budget.h"

namespace dtopp::eval {

bool is_token_data(const std::filesystem::path& path) {
  if (path.extension() == ".npy" || path.extension() == ".bin") return true;
  const PathKind kind = path_kind(path);
  return kind == PathKind::kDirectory ||
         (kind == PathKind::kNothing && path_kind(path.string() + ".idx") != PathKind::kNothing);
}

EvaluationText::EvaluationText(const std::filesystem::path& path, int64_t vocab_size) : path_(path) {
  stream_.emplace(data::TokenStream::open(path, data::Verify::kChanged, vocab_size));
  stream_->require_ids_below(vocab_size);
}

EvaluationText::EvaluationText(const std::filesystem::path& path, const data::Tokenizer& tokenizer)
    : path_(path), ids_(data::encode_file(path, tokenizer)) {}

void EvaluationText::read(uint64_t offset, std::span<int64_t> out) const {
  if (first_ && offset == 0 && !out.empty()) {
    out[0] = *first_;
    out = out.subspan(1);
  } else if (first_) {
    offset -= 1;
  }
  if (stream_) return stream_->read(offset, out);
  std::copy_n(ids_.begin() + static_cast<int64_t>(offset), out.size(), out.begin());
}

at::Tensor EvaluationText::beginning(int64_t sequence_length) const {
  std::vector<int64_t> ids(std::min<uint64_t>(size(), std::max(models::kSolveTokens, sequence_length)));
  read(0, ids);
  return inference::solving_windows(ids, sequence_length, path_.string());
}

}  // namespace dtopp::eval

#include "cli/evaluation_text.h"

#include <algorithm>
#include <filesystem>

#include "dtopp/data/encode_file.h"
#include "dtopp/eval/expert_budget.h"

namespace dtopp::cli {
namespace {

bool is_token_data(const std::filesystem::path& path) {
  return std::filesystem::is_directory(path) || path.extension() == ".npy" || path.extension() == ".bin" ||
         (!std::filesystem::exists(path) && std::filesystem::exists(path.string() + ".idx"));
}

}  // namespace

EvaluationText::EvaluationText(const EvaluateOptions& options, const Checkpoint& checkpoint,
                               int64_t vocab_size) {
  if (is_token_data(options.text)) {
    stream_.emplace(TokenStream::open(options.text, /*verify=*/true, vocab_size));
    stream_->require_ids_below(vocab_size);
  } else {
    ids_ = encode_file(options.text, load_tokenizer(options.inference, checkpoint, vocab_size));
  }
}

void EvaluationText::read(uint64_t offset, std::span<int64_t> out) const {
  if (stream_) return stream_->read(offset, out);
  std::copy_n(ids_.begin() + static_cast<int64_t>(offset), out.size(), out.begin());
}

at::Tensor EvaluationText::windows_to_solve_on(const EvaluateOptions& options, const Checkpoint& checkpoint,
                                               const ModelConfig& config) const {
  if (!options.inference.target_text.empty()) return target_windows(options.inference, checkpoint, config);
  std::vector<int64_t> ids(std::min<uint64_t>(size(), std::max(kSolveTokens, config.sequence_length)));
  read(0, ids);
  return solving_windows(ids, config.sequence_length, options.text);
}

void EvaluationText::meet_target(const EvaluateOptions& options, const Checkpoint& checkpoint,
                                 InferenceModel& model) const {
  const double target = options.inference.target_experts;
  if (target == 0) return;
  model.routing =
      solve_thresholds(model, windows_to_solve_on(options, checkpoint, model.config.model), target);
}

}  // namespace dtopp::cli

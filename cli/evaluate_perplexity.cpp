#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/evaluate.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/progress.h"
#include "dtopp/data/encode_file.h"
#include "dtopp/data/token_file.h"
#include "dtopp/eval/expert_budget.h"
#include "dtopp/eval/perplexity.h"

namespace dtopp::cli {
namespace {

using nlohmann::ordered_json;

bool is_token_data(const std::filesystem::path& path) {
  return std::filesystem::is_directory(path) || path.extension() == ".npy" || path.extension() == ".bin" ||
         (!std::filesystem::exists(path) && std::filesystem::exists(path.string() + ".idx"));
}

// The ids of a text or of a token folder, measured as often as is asked.
class Text {
 public:
  Text(const EvaluateOptions& options, const Checkpoint& checkpoint, int64_t vocab_size)
      : name_(options.text), batch_size_(options.batch_size) {
    if (is_token_data(options.text)) {
      stream_.emplace(TokenStream::open(options.text, /*verify=*/true, vocab_size));
      stream_->require_ids_below(vocab_size);
    } else {
      ids_ = encode_file(options.text, load_tokenizer(options.inference, checkpoint, vocab_size));
    }
  }

  Perplexity measure(const InferenceModel& model) const {
    ProgressBar bar("perplexity", "tok", size());
    return measure_perplexity(
        model, size(), [&](uint64_t offset, std::span<int64_t> out) { read(offset, out); }, batch_size_,
        [&](uint64_t done) { bar.update(done); });
  }

  at::Tensor first_windows(int64_t sequence_length) const {
    std::vector<int64_t> ids(std::min<uint64_t>(size(), std::max(kSolveTokens, sequence_length)));
    read(0, ids);
    return solving_windows(ids, sequence_length, name_);
  }

 private:
  uint64_t size() const { return stream_ ? stream_->size() : ids_.size(); }

  void read(uint64_t offset, std::span<int64_t> out) const {
    if (stream_) return stream_->read(offset, out);
    std::copy_n(ids_.begin() + static_cast<int64_t>(offset), out.size(), out.begin());
  }

  std::string name_;
  int64_t batch_size_;
  std::optional<TokenStream> stream_;
  std::vector<int64_t> ids_;
};

ordered_json to_json(const Perplexity& result) {
  return {{"nll", result.nll}, {"perplexity", result.perplexity()}, {"tokens", result.tokens}};
}

void print_summary(const Checkpoint& checkpoint, const Perplexity& result) {
  std::printf("checkpoint   %s\n", checkpoint.path().c_str());
  std::printf("tokens       %lld\n", static_cast<long long>(result.tokens));
  std::printf("nll          %.6f nats a token\n", result.nll);
  std::printf("perplexity   %.4f\n", result.perplexity());
  if (result.activations.num_layers() > 0) {
    const ActivationSummary active = result.activations.summary();
    std::printf("experts      %.4f a token (deviation %.4f)\n", active.mean, active.deviation);
  }
}

ordered_json sweep(const EvaluateOptions& options, const Text& text, const at::Tensor& windows_BL,
                   InferenceModel& model) {
  ordered_json results = ordered_json::array();
  const bool table = !options.json;
  if (table) std::printf("%8s %10s %12s %10s\n", "target", "nll", "perplexity", "experts");
  for (const double target : options.sweep) {
    model.routing = solve_thresholds(model, windows_BL, target);
    const Perplexity result = text.measure(model);
    const double experts = result.activations.summary().mean;
    ordered_json entry = to_json(result);
    entry["target_experts"] = target;
    entry["active_experts"] = experts;
    results.push_back(std::move(entry));
    if (table) std::printf("%8g %10.6f %12.4f %10.4f\n", target, result.nll, result.perplexity(), experts);
  }
  return {{"sweep", std::move(results)}};
}

}  // namespace

void evaluate_perplexity(const EvaluateOptions& options) {
  if (options.text.empty())
    throw UsageError("--tasks perplexity needs --text FILE (a text file or a token folder)");
  const Checkpoint checkpoint = open_named_checkpoint(options.inference);
  InferenceModel model = load_model(options.inference, checkpoint);
  const ModelConfig& config = model.config.model;
  const Text text(options, checkpoint, config.vocab_size);
  // The text itself is what p is solved on, unless another is named.
  const auto windows = [&] {
    return options.inference.target_text.empty() ? text.first_windows(config.sequence_length)
                                                 : target_windows(options.inference, checkpoint, config);
  };
  ordered_json json;
  if (!options.sweep.empty()) {
    json = sweep(options, text, windows(), model);
  } else {
    const double target = options.inference.target_experts;
    if (target != 0) model.routing = solve_thresholds(model, windows(), target);
    const Perplexity result = text.measure(model);
    json = to_json(result);
    if (!options.json) print_summary(checkpoint, result);
  }
  if (!options.output.empty()) write_file_atomically(options.output, json.dump(2) + "\n");
  if (options.json) std::printf("%s\n", json.dump().c_str());
}

}  // namespace dtopp::cli

#include "cli/inference.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "dtopp/base/errors.h"
#include "dtopp/data/encode_file.h"
#include "dtopp/eval/expert_budget.h"

namespace dtopp::cli {
namespace {

constexpr int64_t kSolveTokens = 16384;  // enough for a mean within a hundredth of an expert

}  // namespace

void add_inference_options(CLI::App& verb, InferenceOptions& options) {
  verb.add_option("checkpoint", options.checkpoint, "a checkpoint, or a run directory (its newest one)")
      ->required();
  verb.add_option("--tokenizer", options.tokenizer, "a tokenizer.json, if the checkpoint holds none");
  verb.add_option("--target-experts", options.target_experts,
                  "active experts a token on average: p is solved for this number on --target-text")
      ->check(CLI::PositiveNumber);
  verb.add_option("--target-text", options.target_text, "the text file on which --target-experts holds");
  verb.add_option("--threads", options.threads, "0: every core")->check(CLI::NonNegativeNumber);
}

Checkpoint open_named_checkpoint(const InferenceOptions& options) {
  return open_checkpoint(options.checkpoint, [](const std::string& text) {
    std::fprintf(stderr, "dtopp: warning: %s\n", text.c_str());
  });
}

Tokenizer load_tokenizer(const InferenceOptions& options, const Checkpoint& checkpoint, int64_t vocab_size) {
  const bool has_own = std::filesystem::is_regular_file(checkpoint.tokenizer_path());
  if (!has_own && options.tokenizer.empty())
    throw UsageError(checkpoint.path().string() +
                     " holds no tokenizer.json (its run was trained on bare token files): pass --tokenizer");
  const std::string path = has_own ? checkpoint.tokenizer_path().string() : options.tokenizer;
  Tokenizer tokenizer = Tokenizer::load(path);
  if (has_own && !options.tokenizer.empty() && Tokenizer::load(options.tokenizer).hash() != tokenizer.hash())
    throw UsageError("--tokenizer " + options.tokenizer +
                     ": not the one the checkpoint was trained with; leave it out");
  if (tokenizer.vocab_size() > vocab_size)
    throw UsageError(path + ": a tokenizer of " + std::to_string(tokenizer.vocab_size()) +
                     " ids does not fit the checkpoint's model.vocab_size of " + std::to_string(vocab_size));
  return tokenizer;
}

RoutingInputs solve_on_text(const InferenceModel& model, const InferenceOptions& options,
                            const Checkpoint& checkpoint, const std::string& text, double target) {
  const ModelConfig& config = model.config.model;
  const auto ids = encode_file(text, load_tokenizer(options, checkpoint, config.vocab_size));
  const int64_t length = std::min<int64_t>(config.sequence_length, static_cast<int64_t>(ids.size()));
  if (length == 0) throw DataError(text + ": holds no text to solve --target-experts on");
  const int64_t windows =
      std::clamp<int64_t>(kSolveTokens / length, 1, static_cast<int64_t>(ids.size()) / length);
  const at::Tensor tokens_BL =
      at::tensor(std::vector<int64_t>(ids.begin(), ids.begin() + windows * length), at::kLong)
          .view({windows, length});
  return solve_thresholds(model, tokens_BL, target);
}

InferenceModel load_model(const InferenceOptions& options, const Checkpoint& checkpoint,
                          const std::string& text) {
  if (options.threads > 0) at::set_num_threads(static_cast<int>(options.threads));
  InferenceModel model = load_inference_model(checkpoint);
  const std::string& solve_on = options.target_text.empty() ? text : options.target_text;
  if (options.target_experts == 0) {
    if (!options.target_text.empty())
      throw UsageError("--target-text means nothing without --target-experts");
    return model;
  }
  if (solve_on.empty()) throw UsageError("--target-experts needs --target-text FILE to solve p on");
  model.routing = solve_on_text(model, options, checkpoint, solve_on, options.target_experts);
  return model;
}

}  // namespace dtopp::cli

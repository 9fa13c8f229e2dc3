// What the verbs that run a trained model share: its checkpoint, tokenizer and budget of experts.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <CLI/CLI.hpp>

#include "dtopp/data/tokenizer.h"
#include "dtopp/eval/inference_model.h"

namespace dtopp::cli {

struct InferenceOptions {
  std::string checkpoint;
  std::string tokenizer;      // for a checkpoint that holds none
  double target_experts = 0;  // 0: the checkpoint's thresholds
  std::string target_text;    // on which thresholds are solved
  Device device = Device::kAuto;
  int64_t threads = 0;
};

void add_inference_options(CLI::App& verb, InferenceOptions& options);

// open_checkpoint whose warnings go to standard error.
Checkpoint open_named_checkpoint(const InferenceOptions& options);

// The checkpoint's tokenizer, or the one named for a checkpoint without; its ids are ids of the model.
Tokenizer load_tokenizer(const InferenceOptions& options, const Checkpoint& checkpoint, int64_t vocab_size);

// The model on the device asked for, its thresholds as trained.
InferenceModel load_model(const InferenceOptions& options, const Checkpoint& checkpoint);

// The first windows [B, L] of --target-text, on which thresholds are solved. UsageError where none is named.
at::Tensor target_windows(const InferenceOptions& options, const Checkpoint& checkpoint,
                          const ModelConfig& config);

// The first windows [B, L] of a text's ids, enough for a mean within a hundredth of an expert; `name` is for
// the DataError where there are none.
at::Tensor solving_windows(std::span<const int64_t> ids, int64_t sequence_length, const std::string& name);

// Solves p for --target-experts where that is given.
void meet_target(InferenceModel& model, const InferenceOptions& options, const Checkpoint& checkpoint);

// As many ids as solving_windows takes.
inline constexpr int64_t kSolveTokens = 16384;

}  // namespace dtopp::cli

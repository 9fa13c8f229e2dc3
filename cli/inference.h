// What the verbs that run a trained model share: their options, and what those open.
#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "dtopp/eval/evaluation_text.h"
#include "dtopp/inference/inference_model.h"

namespace dtopp::cli {

struct InferenceOptions {
  std::string checkpoint;
  std::string tokenizer;      // for a checkpoint that holds none
  double target_experts = 0;  // 0: the checkpoint's thresholds
  std::string target_text;    // on which thresholds are solved
  Device device = Device::kAuto;
  int64_t threads = 0;
};

// For verbs that take models of one type: the checkpoint, --device and --threads.
void add_checkpoint_options(CLI::App& verb, InferenceOptions& options);

// All of them, for language models.
void add_inference_options(CLI::App& verb, InferenceOptions& options);

// open_checkpoint whose warnings go to standard error. UsageError where it holds a model of another type.
Checkpoint open_named_checkpoint(const InferenceOptions& options, ModelType type);

// UsageError where the checkpoint holds a model of another type.
void require_type(const Checkpoint& checkpoint, ModelType type);

// The device and the number of threads asked for.
at::Device set_up_device(const InferenceOptions& options);

// The model on the device asked for, its thresholds as trained.
InferenceModel load_model(const InferenceOptions& options, const Checkpoint& checkpoint);

// Windows [B, L] on which p is solved: the beginning of --target-text, of `text` where none is named.
// UsageError where there is neither.
at::Tensor target_windows(const InferenceOptions& options, const Checkpoint& checkpoint,
                          const ModelConfig& config, const EvaluationText* text = nullptr);

// Solves p for --target-experts where that is given. UsageError for a --target-text without.
void meet_target(InferenceModel& model, const InferenceOptions& options, const Checkpoint& checkpoint,
                 const EvaluationText* text = nullptr);

}  // namespace dtopp::cli

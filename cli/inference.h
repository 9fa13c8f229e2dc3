// Defines the options that commands for trained models share, and opens the checkpoints and models they name.
#pragma once

#include <CLI/CLI.hpp>

#include "dtopp/eval/perplexity.h"
#include "dtopp/inference/inference_model.h"

namespace dtopp::cli {

struct InferenceOptions {
  std::string checkpoint;
  std::string tokenizer;      // for a checkpoint without a tokenizer
  double target_experts = 0;  // 0: the checkpoint's thresholds
  std::string target_text;    // text on which thresholds are solved
  config::Device device = config::Device::kAuto;
  int64_t threads = 0;
  config::Precision precision = config::Precision::kFp32;
};

void add_checkpoint_option(CLI::App& command, InferenceOptions& options);

// Adds the checkpoint, --device and --threads, which all model types share.
void add_checkpoint_options(CLI::App& command, InferenceOptions& options);

void add_precision_option(CLI::App& command, InferenceOptions& options);

// Adds all of these options, for language models. `default_text` describes the default of --target-text.
void add_inference_options(CLI::App& command, InferenceOptions& options,
                           const std::string& default_text = "the run's validation data");

// Opens the checkpoint and prints warnings to standard error. Throws UsageError if its model has another
// type.
checkpoint::Checkpoint open_named_checkpoint(const InferenceOptions& options, config::ModelType type);

// Selects the device of --device and sets the number of threads of --threads.
at::Device set_up_device(const InferenceOptions& options);

at::ScalarType compute_type(const InferenceOptions& options);

// Opens the texts in `paths` as sources of one. Plain text is encoded with the checkpoint's tokenizer.
eval::EvaluationText open_texts(const InferenceOptions& options, const std::vector<std::string>& paths,
                                const checkpoint::Checkpoint& checkpoint, const config::ModelConfig& config);

// Loads the model on the device of --device in --precision, with the checkpoint's thresholds.
inference::InferenceModel load_model(const InferenceOptions& options,
                                     const checkpoint::Checkpoint& checkpoint);

// Returns the windows, int64 [B, L], on which p is solved: the beginning of --target-text, or else of `text`,
// or else of the run's validation data. Throws UsageError if there is none of them.
Tensor target_windows(const InferenceOptions& options, const checkpoint::Checkpoint& checkpoint,
                      const config::ModelConfig& config, const eval::EvaluationText* text = nullptr);

// Solves p for --target-experts if it is given. Throws UsageError if --target-text is given without it.
void meet_target(inference::InferenceModel& model, const InferenceOptions& options,
                 const checkpoint::Checkpoint& checkpoint, const eval::EvaluationText* text = nullptr);

}  // namespace dtopp::cli

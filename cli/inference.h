// What the verbs that run a trained model share: its checkpoint, tokenizer and budget of experts.
#pragma once

#include <cstdint>
#include <optional>
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
  int64_t threads = 0;
};

void add_inference_options(CLI::App& verb, InferenceOptions& options);

// open_checkpoint whose warnings go to standard error.
Checkpoint open_named_checkpoint(const InferenceOptions& options);

// The checkpoint's tokenizer, or the one named for a checkpoint without; its ids are ids of the model.
Tokenizer load_tokenizer(const InferenceOptions& options, const Checkpoint& checkpoint, int64_t vocab_size);

// The model with the thresholds asked for. `text`: where target_text is not given, solve on this file.
InferenceModel load_model(const InferenceOptions& options, const Checkpoint& checkpoint,
                          const std::string& text = {});

// Thresholds at which the model's tokens choose `target` experts on the text's first windows.
RoutingInputs solve_on_text(const InferenceModel& model, const InferenceOptions& options,
                            const Checkpoint& checkpoint, const std::string& text, double target);

}  // namespace dtopp::cli

// The parts of `dtopp evaluate`: the perplexity of a text, the experts its tokens use, and the tasks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/inference.h"

namespace dtopp::cli {

struct EvaluateOptions {
  InferenceOptions inference;
  std::string tasks;
  std::string text;  // perplexity, activations
  std::string data;  // tasks: the folder with their files
  std::string dump;  // tasks
  std::string output;
  int64_t limit = 0;  // items of each data set; 0: all
  int64_t batch_size = 8;
  std::vector<double> sweep;  // numbers of active experts
  bool dry_run = false;
  bool paper = false;
  bool json = false;
};

// --text, read with the checkpoint's tokenizer where it is no token data.
EvaluationText open_text(const EvaluateOptions& options, const Checkpoint& checkpoint,
                         const ModelConfig& config);

// Writes the results to --output where that is named, and prints them: with --json, else the table.
void report(const EvaluateOptions& options, const nlohmann::ordered_json& json, const std::string& table);

void evaluate_perplexity(const EvaluateOptions& options);
void evaluate_activations(const EvaluateOptions& options);
void evaluate_tasks(const EvaluateOptions& options);

}  // namespace dtopp::cli

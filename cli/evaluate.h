// The parts of `dtopp evaluate` that `dtopp convert` uses too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/inference.h"
#include "dtopp/eval/perplexity.h"

namespace dtopp::cli {

// The options of all commands of evaluate.
struct EvaluateOptions {
  InferenceOptions inference;
  std::string output;
  int64_t batch_size = 8;
  int64_t processes = 0;  // processes to start; 0: this process evaluates, alone or as a rank
  bool json = false;
};

// Opens the texts in `paths` as sources of one. Plain text is encoded with the checkpoint's tokenizer.
eval::EvaluationText open_texts(const EvaluateOptions& options, const std::vector<std::string>& paths,
                                const checkpoint::Checkpoint& checkpoint, const config::ModelConfig& config);

}  // namespace dtopp::cli

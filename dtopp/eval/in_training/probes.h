// Tasks put to a model while it trains: accuracy beside the validation loss. Nothing of the training changes:
// no random number is drawn, no count enters the controller.
#pragma once

#include "dtopp/train/run.h"

namespace dtopp {

// The tasks of config.validation over config.validation.task_data, their prompts made with the tokenizer of
// the training data; empty where there are none. "all" is what fits the model's sequence length. UsageError
// where a task is unknown or named and does not fit, or no training data comes with a tokenizer; DataError
// where training data or a task's file are missing or damaged.
Probes make_probes(const RunConfig& config, const std::function<bool()>& stop);

}  // namespace dtopp

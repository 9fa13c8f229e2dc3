// Tasks put to a model while it trains: accuracy beside the validation loss. Nothing of the training changes:
// no random number is drawn, no count enters the controller.
#pragma once

#include "dtopp/train/run.h"

namespace dtopp {

// The tasks of config.validation over config.validation.task_data, their prompts made with the tokenizer of
// the training data; empty where there are none. UsageError where a task is unknown, longer than the model's
// sequence, or no training data names a tokenizer; DataError where a task's file is missing or damaged.
Probes make_probes(const RunConfig& config, const std::function<bool()>& stop);

}  // namespace dtopp

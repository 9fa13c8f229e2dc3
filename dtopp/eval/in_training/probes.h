// Evaluates benchmark tasks during training and reports their accuracy beside the validation loss.
//
// Training results do not change: a probe draws no random numbers and does not update the threshold
// controller.
#pragma once

#include "dtopp/train/run.h"

namespace dtopp {

// Prepares the tasks of config.validation.tasks from the files in config.validation.task_data.
//
// Prompts are encoded with the tokenizer of the training data. "all" selects the tasks that fit the model's
// sequence length.
//
// Returns: the probes; an empty function if there are no tasks
// Throws:  UsageError if a task is unknown, if a named task does not fit, or if no training data has a
//          tokenizer; DataError if training data or a task's file is missing or damaged
Probes make_probes(const RunConfig& config, const std::function<bool()>& stop);

}  // namespace dtopp

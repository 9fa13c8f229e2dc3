// Evaluates benchmark tasks during training and reports their accuracy beside the validation loss.
#pragma once

#include "dtopp/train/run.h"

namespace dtopp::eval {

// Prepares the tasks of config.validation.tasks from the files in config.validation.task_data. They run with
// each validation on all ranks, with the fp32 parameters and the current thresholds.
//
// Prompts are encoded with the tokenizer of the training data. "all" selects the tasks that fit the model's
// sequence length.
//
// Returns: the evaluation, which measures TASK/accuracy, NaN if the model's numbers are not finite; null if
//          there are no tasks
// Throws:  UsageError if a task is unknown, if a named task does not fit, or if no training data has a
//          tokenizer; DataError if training data or a task's file is missing or damaged
std::unique_ptr<train::Periodic> make_probes(const config::RunConfig& config);

}  // namespace dtopp::eval

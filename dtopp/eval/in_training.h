// Benchmarks, texts and sample grids of a model while it trains.
#pragma once

#include "dtopp/base/progress.h"
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

// Returns an evaluation that continues the openings of validation.samples held-out sequences after each
// validation but the one before the first step. It prints the texts and writes them to
// <output>/samples/step-XXXXXXXX.txt. It measures nothing. Only rank 0 generates, with the whole model in
// fp32, so that the texts do not depend on the number of ranks.
//
// The sequences are spread over the held-out data. Each opening has 16 tokens, and each continuation at most
// 48, sampled with temperature 0.8 and the seed of the run.
//
// Returns: the evaluation; null if there are no samples
// Throws:  UsageError if no training data has a tokenizer; DataError if training data is missing, or if the
//          file cannot be written
std::unique_ptr<train::Periodic> make_training_texts(const config::RunConfig& config, const ConsoleLog& log);

// Returns an evaluation that writes <output>/samples/step-XXXXXXXX.png every diffusion.samples_every steps
// and after the last step. It measures nothing. All ranks sample, with the EMA of the parameters if the model
// has one; only rank 0 writes.
//
// A grid holds eight pictures per class of diffusion.sample_classes, or of the first eight classes. A model
// without classes gets 64 pictures. The noise is the same in every grid. The sampler is euler (flow) or ddim
// (ddpm) with 25 steps; guidance is 4 if the model was trained with condition dropout. Thresholds p are
// solved for the run's routing.experts. Grids with pictures that are not finite are left out.
//
// Returns: the evaluation; null if the model generates latents or needs text
// Throws:  DataError if the prepared images cannot be read or the file cannot be written
std::unique_ptr<train::Periodic> make_training_grids(const config::RunConfig& config);

}  // namespace dtopp::eval

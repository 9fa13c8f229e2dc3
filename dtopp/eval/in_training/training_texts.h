// Generates short texts while a language model trains.
#pragma once

#include "dtopp/base/progress.h"
#include "dtopp/train/run.h"

namespace dtopp::eval {

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

}  // namespace dtopp::eval

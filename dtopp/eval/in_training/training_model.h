// The tokenizer of a run's training data, and its language model as it trains.
#pragma once

#include <string>

#include "dtopp/config/data_config.h"
#include "dtopp/data/text/tokenizer.h"
#include "dtopp/inference/inference_model.h"
#include "dtopp/train/trainer.h"

namespace dtopp::eval {

// Throws UsageError if no training data has a tokenizer, with `key`, which needs it, and `none`, the value
// that does without; DataError if training data is missing.
data::Tokenizer training_tokenizer(const config::DataConfig& data, const std::string& key,
                                   const std::string& none);

// The language model with the trainer's fp32 parameters and routing. Collective: every rank calls it.
inference::InferenceModel training_model(const config::RunConfig& config, train::Trainer& trainer,
                                         const data::Tokenizer& tokenizer);

}  // namespace dtopp::eval

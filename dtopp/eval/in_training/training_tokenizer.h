// Finds the tokenizer of a run's training data.
#pragma once

#include <string>

#include "dtopp/config/data_config.h"
#include "dtopp/data/tokenizer/tokenizer.h"

namespace dtopp::eval {

// Throws UsageError if no training data has a tokenizer, with `key`, which needs it, and `none`, the value
// that does without; DataError if training data is missing.
data::Tokenizer training_tokenizer(const config::DataConfig& data, const std::string& key,
                                   const std::string& none);

}  // namespace dtopp::eval

// A run small enough for a plan to be counted by hand.
#pragma once

#include "dtopp/config/run_config.h"

namespace dtopp::plan {

inline config::RunConfig tiny(config::Precision precision = config::Precision::kFp32) {
  config::RunConfig config;
  config.model.hidden_size = 8;
  config.model.num_layers = 2;
  config.model.num_heads = 2;
  config.model.ffn_hidden_size = 5;
  config.model.num_experts = 6;
  config.model.vocab_size = 11;
  config.model.sequence_length = 4;
  config.routing.experts = {3.0};
  config.training.global_batch_size = 12;
  config.training.micro_batch_size = 3;
  config.training.precision = precision;
  return config;
}

}  // namespace dtopp::plan

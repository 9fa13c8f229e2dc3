// A router with a fixed threshold p, for tests of models.
#pragma once

#include "dtopp/moe/expert_layer.h"
#include "dtopp/moe/solving.h"

namespace dtopp::moe {

inline Routing fixed_threshold(const config::RunConfig& config, double p) {
  if (config.model.is_dense()) return {};
  return {std::make_shared<TopPRouter>(config, at::full({1}, p, at::kDouble))};
}

}  // namespace dtopp::moe

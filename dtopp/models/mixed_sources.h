// Orders training samples by the weights of their sources, for every model type.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/data/text/mixture.h"

namespace dtopp::models {

// The use of one weighted source up to a position of the training order.
struct SourceUse {
  std::string name;   // as it appears in metrics
  double share = 0;   // share of all samples
  double epochs = 0;  // passes over the source's own samples
};

class MixedSources {
 public:
  // Mixes the sources of config.data, which have `sizes` samples.
  MixedSources(const config::RunConfig& config, std::vector<uint64_t> sizes)
      : order_(config.data.weights(), std::move(sizes), static_cast<uint64_t>(config.training.seed)),
        names_(config::source_names(config.data.train)) {}

  data::MixedOrder::Draw operator()(uint64_t position) const { return order_(position); }
  // Returns the use of each source before `position` of the training order.
  std::vector<SourceUse> use(uint64_t position) const;

 private:
  data::MixedOrder order_;
  std::vector<std::string> names_;
};

}  // namespace dtopp::models

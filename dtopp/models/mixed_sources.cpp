#include "dtopp/models/mixed_sources.h"

#include <utility>

namespace dtopp {

std::shared_ptr<const MixedOrder> mixed_order_of(const RunConfig& config, std::vector<uint64_t> sizes,
                                                 TrainingData& data) {
  auto order = std::make_shared<const MixedOrder>(config.data.weights(), std::move(sizes),
                                                  static_cast<uint64_t>(config.training.seed));
  data.sources = [order, names = source_names(config.data.train_paths())](uint64_t position) {
    std::vector<SourceUse> uses;
    for (size_t i = 0; i < names.size(); ++i)
      uses.push_back({names[i], order->share(i, position), order->epochs(i, position)});
    return uses;
  };
  return order;
}

}  // namespace dtopp

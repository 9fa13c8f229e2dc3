#include "dtopp/models/mixed_sources.h"

namespace dtopp::models {

std::vector<SourceUse> MixedSources::use(uint64_t position) const {
  std::vector<SourceUse> uses;
  for (size_t i = 0; i < names_.size(); ++i)
    uses.push_back({names_[i], order_.share(i, position), order_.epochs(i, position)});
  return uses;
}

}  // namespace dtopp::models

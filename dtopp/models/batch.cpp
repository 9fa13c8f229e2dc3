#include "dtopp/models/batch.h"

#include "dtopp/base/errors.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::models {
bool Batch::has(std::string_view name) const {
  return std::ranges::any_of(tensors, [&](const auto& tensor) { return tensor.first == name; });
}

Batch Batch::to(const at::Device& device) const {
  Batch moved{position, {}};
  for (const auto& [name, tensor] : tensors) moved.tensors.emplace_back(name, ops::to_device(tensor, device));
  return moved;
}

std::vector<SourceUse> MixedSources::use(uint64_t position) const {
  std::vector<SourceUse> uses;
  for (size_t i = 0; i < names_.size(); ++i)
    uses.push_back({names_[i], order_.share(i, position), order_.epochs(i, position)});
  return uses;
}

std::vector<HeldOutSource> held_out_sources(const config::DataConfig& data,
                                            const std::vector<uint64_t>& sizes) {
  if (!data.validates_by_source()) return {};
  const std::vector<std::string> names = config::source_names(data.validation);
  const std::vector<double> shares = data.mixture_shares();
  std::vector<HeldOutSource> sources;
  uint64_t first = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0)
      throw DataError(data.validation.at(i).path +
                      ": holds less than one sample; prepare more data, or shorten the sequence");
    sources.push_back({names.at(i), first, sizes[i]});
    if (!shares.empty()) sources.back().mixture_share = shares[i];
    first += sizes[i];
  }
  return sources;
}

std::vector<HeldOutSource> first_of_each(const TrainingData& data, uint64_t samples) {
  std::vector<HeldOutSource> sources = data.validation_sources;
  if (sources.empty()) sources.push_back({.samples = data.validation_samples});
  for (HeldOutSource& source : sources) source.samples = std::min(source.samples, samples);
  return sources;
}

}  // namespace dtopp::models

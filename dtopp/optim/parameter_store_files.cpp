// Reads and writes the store's tensors in checkpoints.
#include <algorithm>

#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/distributed/sharding/shards.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/optim/parameter_store.h"

namespace dtopp::optim {
namespace {

distributed::ElementRange elements_of(uint64_t begin_byte, uint64_t bytes) {
  constexpr auto kElement = static_cast<int64_t>(sizeof(float));
  const auto begin = static_cast<int64_t>(begin_byte) / kElement;
  return {begin, begin + static_cast<int64_t>(bytes) / kElement};
}

TensorSource source_of(const parameters::ParameterSpec& spec, const std::string& suffix = "") {
  return {spec.name + suffix, "F32", spec.shape, static_cast<uint64_t>(spec.count()) * sizeof(float),
          TensorSource::Read()};
}

std::vector<TensorSource> sources_of(const std::vector<parameters::ParameterSpec>& specs) {
  std::vector<TensorSource> sources;
  for (const parameters::ParameterSpec& spec : specs) sources.push_back(source_of(spec));
  return sources;
}

}  // namespace

void ParameterStore::copy_local_shard(std::span<const std::byte> bytes, size_t parameter,
                                      const at::Tensor& local_shard) const {
  const distributed::ElementRange range = this->local_shard(parameter);
  ops::copy_from_bytes(bytes.subspan(static_cast<size_t>(range.begin) * sizeof(float),
                                     static_cast<size_t>(range.size()) * sizeof(float)),
                       local_shard);
}

void ParameterStore::load(const checkpoint::Checkpoint& checkpoint) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    const parameters::ParameterSpec& spec = specs_[i];
    copy_local_shard(checkpoint.parameter(spec.name, spec.shape), i, main_params_[i]);
    const std::vector<std::string> names = optimizer_->slots(spec);
    for (size_t slot = 0; slot < names.size(); ++slot)
      copy_local_shard(checkpoint.slot(spec.name + "." + names[slot], spec.shape), i, slots_[i][slot]);
  }
  updates_.fill_(checkpoint.state().step - checkpoint.state().skipped_steps);
  refresh_copies();
}

void ParameterStore::load_ema(const checkpoint::Checkpoint& checkpoint) {
  for (size_t i = 0; i < specs_.size(); ++i)
    copy_local_shard(checkpoint.ema(specs_[i].name, specs_[i].shape), i, ema_params_.at(i));
}

at::Tensor ParameterStore::whole(const std::vector<at::Tensor>& local_shards, size_t parameter) const {
  const parameters::ParameterSpec& spec = specs_.at(parameter);
  const distributed::ShardedTensor tensor{&layouts_[parameter], local_shards.at(parameter)};
  const std::vector<distributed::ShardRequest> on_all(static_cast<size_t>(groups_.size()),
                                                      {&tensor, {0, spec.count()}});
  return distributed::gather_shards(*groups_.world, on_all).view(spec.shape);
}

std::vector<TensorSource> ParameterStore::parameter_sources() const { return sources_of(specs_); }

std::vector<TensorSource> ParameterStore::ema_sources() const {
  return ema_params_.empty() ? std::vector<TensorSource>() : sources_of(specs_);
}

std::vector<TensorSource> ParameterStore::slot_sources() const {
  std::vector<TensorSource> sources;
  for (const parameters::ParameterSpec& spec : specs_)
    for (const std::string& slot : optimizer_->slots(spec)) sources.push_back(source_of(spec, "." + slot));
  return sources;
}

std::vector<at::Tensor> ParameterStore::saved_shards() const {
  std::vector<at::Tensor> shards = main_params_;
  for (const std::vector<at::Tensor>& slots : slots_) shards.insert(shards.end(), slots.begin(), slots.end());
  shards.insert(shards.end(), ema_params_.begin(), ema_params_.end());
  return shards;
}

std::pair<const distributed::ShardLayout*, size_t> ParameterStore::find_saved(
    const checkpoint::TensorByteRange& range) const {
  const std::string& name = range.tensor->name;
  if (range.kind == checkpoint::kModel) return {&layouts_[index_.at(name)], index_.at(name)};
  size_t position = specs_.size();
  if (range.kind == checkpoint::kEma) {
    for (const std::vector<at::Tensor>& slots : slots_) position += slots.size();
    return {&layouts_[index_.at(name)], position + index_.at(name)};
  }
  const size_t dot = name.rfind('.'), parameter = index_.at(name.substr(0, dot));
  for (size_t i = 0; i < parameter; ++i) position += slots_[i].size();
  const std::vector<std::string> names = optimizer_->slots(specs_[parameter]);
  const auto slot = std::ranges::find(names, name.substr(dot + 1)) - names.begin();
  return {&layouts_[parameter], position + static_cast<size_t>(slot)};
}

void ParameterStore::collect_saved(const std::vector<checkpoint::TensorByteRange>& by_rank,
                                   const std::vector<at::Tensor>& shards, distributed::Collectives& ranks,
                                   const TakeBytes& take) const {
  std::vector<distributed::ShardedTensor> tensors(by_rank.size());
  std::vector<distributed::ShardRequest> requests(by_rank.size());
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const checkpoint::TensorByteRange& range = by_rank[rank];
    if (!range.tensor) continue;
    const auto [layout, position] = find_saved(range);
    tensors[rank] = {layout, shards.at(position)};
    requests[rank] = {&tensors[rank], elements_of(range.begin, range.count)};
  }
  const at::Tensor elements = distributed::gather_shards(ranks, requests);
  if (elements.defined()) ops::copy_to_bytes(elements, take);
}

}  // namespace dtopp::optim

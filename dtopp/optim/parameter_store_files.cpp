// Reads and writes the store's tensors in checkpoints.
#include <algorithm>
#include <cstring>

#include "dtopp/checkpoint/checkpoint_layout.h"
#include "dtopp/distributed/sharding/shards.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/optim/parameter_store.h"

namespace dtopp {
namespace {

// Suffixes of the moments' names.
constexpr char kExpAvg[] = ".exp_avg";
constexpr char kExpAvgSq[] = ".exp_avg_sq";

ElementRange elements_of(uint64_t begin_byte, uint64_t bytes) {
  constexpr auto kElement = static_cast<int64_t>(sizeof(float));
  const auto begin = static_cast<int64_t>(begin_byte) / kElement;
  return {begin, begin + static_cast<int64_t>(bytes) / kElement};
}

void collect_bytes(Collectives& ranks, const std::vector<ShardRequest>& by_rank, const TakeBytes& take) {
  const at::Tensor elements = gather_shards(ranks, by_rank);
  if (elements.defined()) copy_to_bytes(elements, take);
}

}  // namespace

void ParameterStore::copy_local_shard(std::span<const std::byte> bytes, size_t parameter,
                                      const at::Tensor& local_shard) const {
  const ElementRange range = this->local_shard(parameter);
  copy_from_bytes(bytes.subspan(static_cast<size_t>(range.begin) * sizeof(float),
                                static_cast<size_t>(range.size()) * sizeof(float)),
                  local_shard);
}

void ParameterStore::load(const Checkpoint& checkpoint, bool moments) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ParameterSpec& spec = specs_[i];
    copy_local_shard(checkpoint.parameter(spec.name, spec.shape), i, main_params_[i]);
    if (!moments) continue;
    copy_local_shard(checkpoint.moment(spec.name + kExpAvg, spec.shape), i, exp_avg_[i]);
    copy_local_shard(checkpoint.moment(spec.name + kExpAvgSq, spec.shape), i, exp_avg_sq_[i]);
  }
  if (moments) updates_.fill_(checkpoint.state().step - checkpoint.state().skipped_steps);
  refresh_copies();
}

void ParameterStore::load_ema(const Checkpoint& checkpoint) {
  for (size_t i = 0; i < specs_.size(); ++i)
    copy_local_shard(checkpoint.ema(specs_[i].name, specs_[i].shape), i, ema_params_.at(i));
}

at::Tensor ParameterStore::whole(const std::vector<at::Tensor>& local_shards, size_t parameter) const {
  const ParameterSpec& spec = specs_.at(parameter);
  const ShardedTensor tensor{&layouts_[parameter], local_shards.at(parameter)};
  const std::vector<ShardRequest> on_all(static_cast<size_t>(groups_.size()), {&tensor, {0, spec.count()}});
  return gather_shards(*groups_.world, on_all).view(spec.shape);
}

TensorSource ParameterStore::source_of(const at::Tensor& local_shard, size_t parameter,
                                       const std::string& name) const {
  const ParameterSpec& spec = specs_[parameter];
  const auto read = [this, tensor = ShardedTensor{&layouts_[parameter], local_shard}](
                        uint64_t begin, uint64_t count, const TakeBytes& take) {
    for (const uint64_t end = begin + count; begin < end; begin += kHostPieceBytes) {
      std::vector<ShardRequest> by_rank(static_cast<size_t>(groups_.size()));
      by_rank.front() = {&tensor, elements_of(begin, std::min<uint64_t>(kHostPieceBytes, end - begin))};
      collect_bytes(*groups_.world, by_rank, take);
    }
  };
  return {name, "F32", spec.shape, static_cast<uint64_t>(spec.count()) * sizeof(float), read};
}

std::vector<TensorSource> ParameterStore::sources_of(const std::vector<at::Tensor>& local_shards) const {
  std::vector<TensorSource> sources;
  for (size_t i = 0; i < local_shards.size(); ++i)
    sources.push_back(source_of(local_shards[i], i, specs_[i].name));
  return sources;
}

std::vector<TensorSource> ParameterStore::moment_sources() const {
  std::vector<TensorSource> sources;
  for (size_t i = 0; i < specs_.size(); ++i) {
    sources.push_back(source_of(exp_avg_[i], i, specs_[i].name + kExpAvg));
    sources.push_back(source_of(exp_avg_sq_[i], i, specs_[i].name + kExpAvgSq));
  }
  return sources;
}

void ParameterStore::collect_saved(const std::vector<TensorByteRange>& by_rank, const TakeBytes& take) const {
  const auto tensor_of = [&](const TensorByteRange& range) -> ShardedTensor {
    const std::string& name = range.tensor->name;
    if (range.kind == kOptimizer) {
      const bool squares = name.ends_with(kExpAvgSq);
      const size_t suffix = std::strlen(squares ? kExpAvgSq : kExpAvg);
      const size_t i = index_.at(name.substr(0, name.size() - suffix));
      return {&layouts_[i], (squares ? exp_avg_sq_ : exp_avg_)[i]};
    }
    const size_t i = index_.at(name);
    return {&layouts_[i], (range.kind == kEma ? ema_params_ : main_params_)[i]};
  };
  std::vector<ShardedTensor> tensors(by_rank.size());
  std::vector<ShardRequest> requests(by_rank.size());
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const TensorByteRange& range = by_rank[rank];
    if (!range.tensor) continue;
    tensors[rank] = tensor_of(range);
    requests[rank] = {&tensors[rank], elements_of(range.begin, range.count)};
  }
  collect_bytes(*groups_.world, requests, take);
}

}  // namespace dtopp

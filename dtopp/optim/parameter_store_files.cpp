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

void collect_bytes(Collectives& ranks, const std::vector<WantedPiece>& by_rank, const TakeBytes& take) {
  const at::Tensor elements = collect(ranks, by_rank);
  if (elements.defined()) copy_to_bytes(elements, take);
}

}  // namespace

void ParameterStore::copy_kept(std::span<const std::byte> bytes, size_t parameter,
                               const at::Tensor& kept) const {
  const ElementRange range = this->kept(parameter);
  copy_from_bytes(bytes.subspan(static_cast<size_t>(range.begin) * sizeof(float),
                                static_cast<size_t>(range.size()) * sizeof(float)),
                  kept);
}

void ParameterStore::load(const Checkpoint& checkpoint, bool moments) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ParameterSpec& spec = specs_[i];
    copy_kept(checkpoint.parameter(spec.name, spec.shape), i, masters_[i]);
    if (!moments) continue;
    copy_kept(checkpoint.moment(spec.name + kExpAvg, spec.shape), i, exp_avg_[i]);
    copy_kept(checkpoint.moment(spec.name + kExpAvgSq, spec.shape), i, exp_avg_sq_[i]);
  }
  if (moments) updates_.fill_(checkpoint.state().step - checkpoint.state().skipped_steps);
  refresh_copies();
}

void ParameterStore::load_average(const Checkpoint& checkpoint) {
  for (size_t i = 0; i < specs_.size(); ++i)
    copy_kept(checkpoint.average(specs_[i].name, specs_[i].shape), i, averages_.at(i));
}

at::Tensor ParameterStore::whole(const std::vector<at::Tensor>& kept, size_t parameter) const {
  const ParameterSpec& spec = specs_.at(parameter);
  const ShardedTensor tensor{&partitions_[parameter], kept.at(parameter)};
  const std::vector<WantedPiece> on_all(static_cast<size_t>(groups_.size()), {&tensor, {0, spec.count()}});
  return collect(*groups_.world, on_all).view(spec.shape);
}

TensorSource ParameterStore::source_of(const at::Tensor& kept, size_t parameter,
                                       const std::string& name) const {
  const ParameterSpec& spec = specs_[parameter];
  const auto read = [this, tensor = ShardedTensor{&partitions_[parameter], kept}](
                        uint64_t begin, uint64_t count, const TakeBytes& take) {
    for (const uint64_t end = begin + count; begin < end; begin += kHostPieceBytes) {
      std::vector<WantedPiece> by_rank(static_cast<size_t>(groups_.size()));
      by_rank.front() = {&tensor, elements_of(begin, std::min<uint64_t>(kHostPieceBytes, end - begin))};
      collect_bytes(*groups_.world, by_rank, take);
    }
  };
  return {name, "F32", spec.shape, static_cast<uint64_t>(spec.count()) * sizeof(float), read};
}

std::vector<TensorSource> ParameterStore::sources_of(const std::vector<at::Tensor>& kept) const {
  std::vector<TensorSource> sources;
  for (size_t i = 0; i < kept.size(); ++i) sources.push_back(source_of(kept[i], i, specs_[i].name));
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

void ParameterStore::collect_saved(const std::vector<TensorPiece>& by_rank, const TakeBytes& take) const {
  const auto tensor_of = [&](const TensorPiece& piece) -> ShardedTensor {
    const std::string& name = piece.tensor->name;
    if (piece.kind == kOptimizer) {
      const bool squares = name.ends_with(kExpAvgSq);
      const size_t suffix = std::strlen(squares ? kExpAvgSq : kExpAvg);
      const size_t i = index_.at(name.substr(0, name.size() - suffix));
      return {&partitions_[i], (squares ? exp_avg_sq_ : exp_avg_)[i]};
    }
    const size_t i = index_.at(name);
    return {&partitions_[i], (piece.kind == kAverage ? averages_ : masters_)[i]};
  };
  std::vector<ShardedTensor> tensors(by_rank.size());
  std::vector<WantedPiece> wanted(by_rank.size());
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const TensorPiece& piece = by_rank[rank];
    if (!piece.tensor) continue;
    tensors[rank] = tensor_of(piece);
    wanted[rank] = {&tensors[rank], elements_of(piece.begin, piece.count)};
  }
  collect_bytes(*groups_.world, wanted, take);
}

}  // namespace dtopp

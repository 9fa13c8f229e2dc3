// The tensors of a run: fp32 masters, Adam moments, fp32 gradients, the copies the model computes with, and
// where it is wanted a moving average of the masters.
//
// Every rank holds what the model computes with, of each layer's experts those of its place (distributed/
// partition.h); of all else it keeps its part of each parameter (ZeRO stage 1), so that calls marked
// "collective" are made by every rank in the same order.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/config/run_config.h"
#include "dtopp/distributed/groups/world.h"
#include "dtopp/distributed/sharding/shard_exchange.h"
#include "dtopp/ops/core/torch.h"
#include "dtopp/optim/gradient_sums.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp {

class ParameterStore {
 public:
  // compute: at::kFloat or at::kBFloat16, and the device where everything lies. Nothing is initialised.
  // reproducible: parallel.reproducible. A layer's experts must divide among the ranks of a block.
  ParameterStore(std::vector<ParameterSpec> specs, const at::TensorOptions& compute, World world = {},
                 bool reproducible = true);

  void initialise(uint64_t seed);
  // Parameters and, with `moments`, the optimiser's. CheckpointError where the checkpoint lacks one.
  void load(const Checkpoint& checkpoint, bool moments);

  // From now on every applied adamw_step moves an average of the parameters, which begins as they are now:
  //   average <- d average + (1 - d) parameter,  d = min(decay, (1 + n) / (10 + n))
  // n: the updates applied so far, this one included.
  void keep_average(double decay);
  // The average of a parameter, f32. Only where one is kept, like load_average. Collective.
  at::Tensor average(const std::string& name) const { return whole(averages_, index_.at(name)); }
  // For a checkpoint, under the parameters' own names; as parameter_sources. None where no average is kept.
  std::vector<TensorSource> average_sources() const { return sources_of(averages_); }
  // CheckpointError where the checkpoint lacks one.
  void load_average(const Checkpoint& checkpoint);
  // Exchanges parameters and averages: the model computes with the average until it is called again, and
  // meanwhile nothing else is. Only where one is kept. Collective.
  void swap_average();

  // The tensor the model computes with: a leaf whose gradients come here; of experts those of this rank's
  // place. Waits until it has come from the ranks that keep it: a forward pass asks for each when it needs
  // it, and those it has not come to are on their way meanwhile.
  at::Tensor compute(const std::string& name) const;
  // Waits for all of them: for a rank that computes nothing.
  void finish_gather() const;

  // A step of that many micro-batches of this rank begins: after each one's backward pass end_micro_batch().
  // Where one that was not ended begins anew, gradients that have set out for other ranks stay, the others
  // are forgotten.
  void begin_step(int64_t micro_batches) {
    among_replicas_->forget();
    gradient_sums_->begin(micro_batches);
  }
  void end_micro_batch() { gradient_sums_->end_micro_batch(); }
  // Waits for the sums over all ranks' micro-batches. After the last end_micro_batch().
  void finish_gradients() { gradients_ = among_replicas_->take_sums(); }
  // Squared norms of the gradients, f64: one for each unit of all parameters in order
  // (distributed/sharding/partition.h), 0 for those that other ranks keep. NaN or infinite where a gradient
  // is.
  at::Tensor squared_norms() const;

  // One AdamW update (decoupled decay on the specs that have it) with gradients divided by `divisor` (f32
  // []), then the compute copies are refreshed. Nothing changes where `applied`, bool [], is false.
  // Collective.
  void adamw_step(const OptimizerConfig& config, double lr, const at::Tensor& divisor,
                  const at::Tensor& applied);

  // For a checkpoint, to be read while the store does not step: piece by piece, each brought from its rank;
  // on one rank of a CPU without a copy. Reading one is collective; rank 0 alone gets the bytes.
  std::vector<TensorSource> parameter_sources() const { return sources_of(masters_); }
  std::vector<TensorSource> moment_sources() const;
  // Brings each rank its piece of those tensors, as SavingRanks::collect. Collective.
  void collect_saved(const std::vector<TensorPiece>& by_rank, const TakeBytes& take) const;

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const at::Device& device() const { return device_; }
  // A whole parameter, f32. Collective.
  at::Tensor master(const std::string& name) const { return whole(masters_, index_.at(name)); }
  // The same of its gradient so far, between finish_gradients() and the next step. Collective.
  at::Tensor gradient(const std::string& name) const { return whole(gradients_, index_.at(name)); }

 private:
  void refresh_copies();
  // What the replicas of this place keep together of what is computed with.
  at::Tensor slice(size_t parameter) const;
  // Where what this rank keeps begins in what it computes with.
  int64_t offset(size_t parameter) const;
  ElementRange kept(size_t parameter) const { return partitions_[parameter].kept(world_.rank()); }
  at::Tensor whole(const std::vector<at::Tensor>& kept, size_t parameter) const;
  std::vector<TensorSource> sources_of(const std::vector<at::Tensor>& kept) const;
  TensorSource source_of(const at::Tensor& kept, size_t parameter, const std::string& name) const;
  void copy_kept(std::span<const std::byte> bytes, size_t parameter, const at::Tensor& kept) const;
  void add_updated(const at::Tensor& kept, size_t parameter, std::vector<at::Tensor>& updated) const;
  void move_average(const at::Tensor& applied);
  void make_exchanges(bool reproducible);

  std::vector<ParameterSpec> specs_;
  at::Device device_;
  World world_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<Partition> partitions_;
  int64_t num_units_ = 0;
  at::Tensor unit_places_;                // int64: of the units this rank keeps, among all
  std::vector<at::Tensor> unit_offsets_;  // int64 [units + 1]: of each parameter's, in what is kept of it
  std::vector<at::Tensor> compute_;       // whole, of experts this place's
  // What this rank keeps of each parameter, f32 [elements]. A master shares storage with the compute copy
  // where that is computed with directly.
  std::vector<at::Tensor> masters_, exp_avg_, exp_avg_sq_, gradients_;
  double average_decay_ = 0;
  std::vector<at::Tensor> averages_;  // none unless kept
  at::Tensor updates_;                // f32 []: AdamW updates so far
  std::unique_ptr<ShardExchange> among_nodes_, among_replicas_;
  // Of parameters that the ranks of a block all compute with; null where a block is one rank.
  std::unique_ptr<ShardExchange> in_block_;
  std::vector<size_t> in_block_parameters_;
  std::vector<size_t> place_in_block_;  // by parameter; kNone for experts
  std::unique_ptr<GradientSums> gradient_sums_;
};

}  // namespace dtopp

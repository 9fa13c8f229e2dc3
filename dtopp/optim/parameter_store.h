// Owns the tensors of a run: the parameters that the model computes with, fp32 main parameters, the
// optimizer's slots, fp32 gradients and optionally an EMA of the parameters.
//
// Sharding follows ZeRO stage 1. Every rank holds all parameters that the model computes with; of the experts
// it holds only its EP shard. It holds its local shard (distributed/shard_layout.h) of everything
// else. Example: a bf16 parameter of 65,536 elements (4 chunks) on 4 ranks with EP size 1:
//
//                                                rank 0     rank 1     rank 2     rank 3
// model_params_   bf16                           all        all        all        all
// main_params_    f32; also slots_, gradients_   chunk 0    chunk 1    chunk 2    chunk 3
//                 and ema_params_
//
// In a step, gradients move down the left side and parameters up the right side:
//
//   model_params_                                        model_params_
//         |  backward pass                                     ^  forward pass
//         v                                                    |
//   GradientAccumulator      micro-batches of this rank        |
//         v                                                    |
//   ep_reducer_              ranks of the EP group       ep_reducer_
//         v                                                    ^
//   edp_reducer_             EDP ranks of this node      edp_reducer_
//         v                                                    ^
//   edp_inter_node_reducer_  nodes                       edp_inter_node_reducer_
//         v                                                    ^
//   gradients_  ---------->  Optimizer  -------------->  main_params_
//
// Experts skip ep_reducer_. The calls of a step:
//
//   begin_step(n);  n times: forward pass, backward pass, end_micro_batch();
//   finish_gradients();  squared_norms();  step(lr, divisor, applied);
//
// Throws:        CheckpointError if a checkpoint lacks a tensor; errors of BucketedReducer
// Collective:    the calls of a step except squared_norms, and functions marked "Collective": every rank, in
//                the same order
#pragma once

#include <unordered_map>

#include <c10/util/FunctionRef.h>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/config/run_config.h"
#include "dtopp/distributed/bucketed_reducer.h"
#include "dtopp/distributed/process_groups.h"
#include "dtopp/distributed/tree_sum.h"
#include "dtopp/ops/core/gradient_accumulation_hook.h"
#include "dtopp/optim/optimizer.h"
#include "dtopp/parameters/parameters.h"

namespace dtopp::optim {

// Sums the gradients of a step over a rank's micro-batches, in fp32.
//
// The sum follows an aligned tree (tree_sum.h) or the order of the micro-batches. A hook per parameter adds a
// gradient as soon as the backward pass completes it, and frees autograd's copy. Only one set of gradients
// therefore exists. Example with a tree over 3 micro-batches:
//
// backward pass of micro-batch   added    stored                       result
// 0                              g0       g0
// 1                              g1       g0 + g1
// 2 (the last)                   g2                                    take(parameter, (g0 + g1) + g2)
//
// `take` runs during the last backward pass, so the reduce-scatter of a gradient overlaps with the rest of
// it.
//
// Collective:    end_micro_batch, if gradients are shared

// The parameters that every rank of an EP group computes with: all but the experts. The EP group reduces
// their gradients, and each rank sums its EP shard.
//
// The ranks of an EP group process alternating micro-batches of one range. Along a tree, they reduce after
// each micro-batch; otherwise they reduce once, after the last one.
struct SharedGradients {
  distributed::BucketedReducer* reducer = nullptr;  // null: no shared gradients
  std::vector<size_t> parameters{};  // parameter i of `reducer` is parameter parameters[i] of the model
};

inline constexpr size_t kNotShared = SIZE_MAX;  // instead of an index

class GradientAccumulator {
 public:
  // Receives the sum of a parameter, once per step, when its last micro-batch completes it. The sum is f32 in
  // the parameter's shape, or [EP shard] if shared; undefined if no micro-batch reached the parameter.
  using Take = std::function<void(size_t parameter, Tensor sum)>;

  // `parameters` are the parameters that the model computes with. Their gradients are stored only here from
  // now on.
  GradientAccumulator(const std::vector<Tensor>& parameters, bool along_tree, Take take,
                      SharedGradients shared = {});
  GradientAccumulator(const GradientAccumulator&) = delete;
  GradientAccumulator& operator=(const GradientAccumulator&) = delete;
  ~GradientAccumulator();

  // Starts a step with that many micro-batches and discards earlier sums. With 0, `take` gets an undefined
  // sum for every parameter at once. All ranks of an EP group pass the same number.
  void begin(int64_t micro_batches);
  // Call it after each backward pass, and in turns in which this rank of the EP group has no micro-batch.
  // Collective if gradients are shared.
  void end_micro_batch();

 private:
  class Hook;
  bool reduces() const { return shared_.reducer != nullptr && (along_tree_ || left_ == 1); }
  // Whether each gradient of the parameter is reduced separately before it joins a sum.
  bool reduces_each(size_t parameter) const { return along_tree_ && reducer_index_[parameter] != kNotShared; }
  Tensor waiting(size_t parameter);
  ops::AccumulationTarget target(size_t parameter);
  void complete(size_t parameter, const ops::AccumulationTarget& target);
  void require_first(size_t parameter) const;
  void add(size_t parameter, Tensor gradient);
  void add_to_sum(size_t parameter, Tensor gradient);
  void end(size_t parameter);

  std::vector<Tensor> parameters_;
  bool along_tree_;
  Take take_;
  SharedGradients shared_;
  std::vector<size_t> reducer_index_;  // index in shared_.reducer, by parameter
  std::vector<distributed::TreeAccumulator> sums_;
  std::vector<char> reached_;  // whether this micro-batch reached the parameter
  int64_t left_ = 0;           // remaining micro-batches, including this one
};

class ParameterStore {
 public:
  // compute: at::kFloat or at::kBFloat16, and the device of all tensors. reproducible: parallel.reproducible.
  // The EP size must divide the number of experts. The parameters are zero until initialize() or load().
  ParameterStore(std::vector<parameters::ParameterSpec> specs, const at::TensorOptions& compute,
                 const config::OptimizerConfig& optimizer, distributed::ProcessGroups groups = {},
                 bool reproducible = true);

  void initialize(uint64_t seed);
  // fill(spec, whole) fills each whole parameter, f32, on every rank.
  using FillParameter = c10::function_ref<void(const parameters::ParameterSpec&, Tensor& whole)>;
  void initialize(FillParameter fill);
  // Loads the parameters and the optimizer's slots. CheckpointError if the checkpoint lacks a tensor.
  // Collective.
  void load(const checkpoint::Checkpoint& checkpoint);

  // Starts an EMA of the parameters at their current values. Every applied step updates it:
  //
  // average <- d average + (1 - d) parameter,  d = min(decay, (1 + n) / (10 + n))
  //
  // n is the number of updates applied so far, including this one.
  void enable_ema(double decay);
  // The EMA of a whole parameter, f32. Requires enable_ema(). Collective.
  Tensor ema(const std::string& name) const { return whole(ema_params_, index_.at(name)); }
  // The EMA's tensors of a checkpoint, under the parameters' names; see parameter_sources(). Empty without an
  // EMA.
  std::vector<TensorSource> ema_sources() const;
  // Requires enable_ema(). CheckpointError if the checkpoint lacks a tensor.
  void load_ema(const checkpoint::Checkpoint& checkpoint);
  // Exchanges parameters and EMA: the model computes with the EMA until the next call. Do not train in
  // between. Requires enable_ema(). Collective.
  void swap_ema();

  // The tensor that the model computes with: a leaf whose gradients are summed here. An expert tensor holds
  // this rank's EP shard. Waits for the gather of this parameter; later parameters are gathered while the
  // forward pass computes.
  Tensor model_param(const std::string& name) const;
  // Waits for the gathers of all parameters. Call it on a rank that calls model_param() for none, because
  // other ranks wait for its part.
  void finish_all_gather() const;

  // Starts a step with that many micro-batches of this rank. Call end_micro_batch() after each backward pass.
  // All ranks of an EP group pass the same number (GradientAccumulator::begin).
  void begin_step(int64_t micro_batches) { gradient_accumulator_->begin(micro_batches); }
  void end_micro_batch() { gradient_accumulator_->end_micro_batch(); }
  // Waits for the sums over all ranks' micro-batches. Call after the last end_micro_batch().
  void finish_gradients() { gradients_ = edp_reducer_->finish_reduce_scatter(); }
  // Squared norms of the gradients, f64: one per chunk (distributed/shard_layout.h) of all
  // parameters in order, 0 for the chunks of other ranks. The caller adds up the ranks. NaN or infinite if a
  // gradient is.
  Tensor squared_norms() const;

  // Applies one update with gradients divided by `divisor` (f32 []), then refreshes the tensors of
  // model_param(). If `applied` (bool []) is false, nothing changes. Collective.
  void step(const LearningRates& rates, const Tensor& divisor, const Tensor& applied);

  // This rank's shards of everything that a checkpoint stores: main parameters, slots, EMA. They change with
  // the next step; a snapshot of them, in the same order, does not.
  std::vector<Tensor> saved_shards() const;
  // The tensors of a checkpoint, without `read`: collect_saved() reads their bytes.
  std::vector<TensorSource> parameter_sources() const;
  std::vector<TensorSource> slot_sources() const;
  // Implements SavingRanks::collect for those tensors, whose shards are saved_shards() or a snapshot of them.
  // `ranks` are all ranks. With a snapshot, training may continue on another thread. Collective.
  void collect_saved(const std::vector<checkpoint::TensorByteRange>& by_rank,
                     const std::vector<Tensor>& shards, distributed::Collectives& ranks,
                     const TakeBytes& take) const;

  const std::vector<parameters::ParameterSpec>& specs() const { return specs_; }
  const at::Device& device() const { return device_; }
  // A whole main parameter, f32. Collective.
  Tensor main_param(const std::string& name) const { return whole(main_params_, index_.at(name)); }
  // The whole gradient of a parameter, f32, between finish_gradients() and step(). Collective.
  Tensor gradient(const std::string& name) const { return whole(gradients_, index_.at(name)); }

 private:
  void refresh_copies();
  // This rank's EP shard of the tensor that the model computes with.
  Tensor ep_shard(size_t parameter) const;
  // The position of this rank's local shard in the tensor that the model computes with.
  int64_t offset(size_t parameter) const;
  distributed::ElementRange local_shard(size_t parameter) const {
    return layouts_[parameter].local_shard(groups_.rank());
  }
  Tensor whole(const std::vector<Tensor>& local_shards, size_t parameter) const;
  void copy_local_shard(std::span<const std::byte> bytes, size_t parameter, const Tensor& local_shard) const;
  std::vector<distributed::ElementRange> update_ranges(size_t parameter) const;
  // The layout of a saved tensor, and its position in saved_shards().
  std::pair<const distributed::ShardLayout*, size_t> find_saved(
      const checkpoint::TensorByteRange& range) const;
  void update_ema(const Tensor& applied);
  void make_reducers(bool reproducible);

  std::vector<parameters::ParameterSpec> specs_;
  at::Device device_;
  distributed::ProcessGroups groups_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<distributed::ShardLayout> layouts_;
  int64_t num_chunks_ = 0;
  Tensor chunk_indices_;               // int64: indices of this rank's chunks among all chunks
  std::vector<Tensor> chunk_offsets_;  // int64 [chunks + 1] per parameter: offsets in its local shard
  std::vector<Tensor> model_params_;   // whole parameters; of experts, the EP shard
  // This rank's local shards, f32 [elements]. A main parameter shares storage with model_params_ if the model
  // computes in fp32 with it.
  std::vector<Tensor> main_params_, gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::vector<Tensor>> slots_;  // by parameter, in the order of Optimizer::slots
  double ema_decay_ = 0;
  std::vector<Tensor> ema_params_;  // empty without an EMA
  Tensor updates_;                  // f32 []: updates applied so far
  std::unique_ptr<distributed::BucketedReducer> edp_inter_node_reducer_, edp_reducer_;
  // For parameters that all ranks of the EP group compute with; null if the EP size is 1.
  std::unique_ptr<distributed::BucketedReducer> ep_reducer_;
  std::vector<size_t> ep_parameters_;
  std::vector<size_t> ep_index_;  // by parameter; kNotShared for experts
  std::unique_ptr<GradientAccumulator> gradient_accumulator_;
};

}  // namespace dtopp::optim

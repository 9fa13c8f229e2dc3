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
#pragma once

#include <functional>
#include <vector>

#include "dtopp/distributed/sharding/bucketed_reducer.h"
#include "dtopp/distributed/sharding/tree_sum.h"
#include "dtopp/ops/core/gradient_accumulation_hook.h"

namespace dtopp::optim {

// The parameters that every rank of an EP group computes with: all but the experts. The EP group reduces
// their gradients, and each rank sums its EP shard.
//
// The ranks of an EP group process alternating micro-batches of one range. Along a tree, they reduce after
// each micro-batch; otherwise they reduce once, after the last one.
struct SharedGradients {
  distributed::BucketedReducer* reducer = nullptr;  // null: no shared gradients
  std::vector<size_t> parameters{};  // parameter i of `reducer` is parameter parameters[i] of the model
};

class GradientAccumulator {
 public:
  // Receives the sum of a parameter, once per step, when its last micro-batch completes it. The sum is f32 in
  // the parameter's shape, or [EP shard] if shared; undefined if no micro-batch reached the parameter.
  using Take = std::function<void(size_t parameter, at::Tensor sum)>;

  // `parameters` are the parameters that the model computes with. Their gradients are stored only here from
  // now on.
  GradientAccumulator(const std::vector<at::Tensor>& parameters, bool along_tree, Take take,
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
  at::Tensor waiting(size_t parameter);
  ops::AccumulationTarget target(size_t parameter);
  void complete(size_t parameter, const ops::AccumulationTarget& target);
  void require_first(size_t parameter) const;
  void add(size_t parameter, at::Tensor gradient);
  void add_to_sum(size_t parameter, at::Tensor gradient);
  void end(size_t parameter);

  std::vector<at::Tensor> parameters_;
  bool along_tree_;
  Take take_;
  SharedGradients shared_;
  static constexpr size_t kNotShared = SIZE_MAX;
  std::vector<size_t> reducer_index_;  // index in shared_.reducer, by parameter
  std::vector<distributed::TreeAccumulator> sums_;
  std::vector<char> reached_;  // whether this micro-batch reached the parameter
  int64_t left_ = 0;           // remaining micro-batches, including this one
};

}  // namespace dtopp::optim

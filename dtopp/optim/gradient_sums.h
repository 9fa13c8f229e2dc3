// The gradients of a step in fp32, summed over a rank's micro-batches: along an aligned tree (tree_sum.h), or
// one after another. Each is added as backward makes it and autograd's own copy freed, so that no second set
// of them exists.
#pragma once

#include <functional>
#include <vector>

#include "dtopp/distributed/sharding/shard_exchange.h"
#include "dtopp/distributed/sharding/tree_sum.h"
#include "dtopp/ops/core/gradient_sum.h"

namespace dtopp {

// Gradients that ranks whose micro-batches alternate, those of a block, sum among them before they join a
// rank's sum: along the tree after each micro-batch, else after the last. A rank goes on with its part, f32
// [kept].
struct SharedGradients {
  ShardExchange* exchange = nullptr;  // none
  std::vector<size_t> parameters{};   // of the exchange: which of the leaves
};

class GradientSums {
 public:
  // Takes the sum of a parameter as its last micro-batch completes it: f32, undefined where no micro-batch
  // reached the parameter.
  using Take = std::function<void(size_t parameter, at::Tensor sum)>;

  // `leaves`: what the model computes with. From now on their gradients come here and nowhere else.
  GradientSums(const std::vector<at::Tensor>& leaves, bool along_tree, Take take,
               SharedGradients shared = {});
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;
  ~GradientSums();

  // A step of that many micro-batches begins; what there was is forgotten. Without any, all is complete.
  void begin(int64_t micro_batches);
  // After each backward pass. Collective where sums are shared.
  void end_micro_batch();

 private:
  class Hook;
  bool exchanges() const { return shared_.exchange != nullptr && (along_tree_ || left_ == 1); }
  // Whether each of its gradients travels by itself before it joins a sum.
  bool exchanges_each(size_t parameter) const { return along_tree_ && place_[parameter] != kNotShared; }
  at::Tensor waiting(size_t parameter);
  SumPlace place(size_t parameter);
  void complete(size_t parameter, const SumPlace& place);
  void add(size_t parameter, at::Tensor gradient);
  void add_to_sum(size_t parameter, at::Tensor gradient);
  void end(size_t parameter);

  std::vector<at::Tensor> leaves_;
  bool along_tree_;
  Take take_;
  SharedGradients shared_;
  static constexpr size_t kNotShared = SIZE_MAX;
  std::vector<size_t> place_;  // in the exchange
  std::vector<TreeAccumulator> sums_;
  std::vector<char> reached_;  // by this micro-batch
  int64_t left_ = 0;           // micro-batches, this one included
};

}  // namespace dtopp

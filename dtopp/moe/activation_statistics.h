// Exact counts of which experts were used, over the micro-batches of one optimiser step (or a validation
// pass). They are kept as int64 tensors on the device and read once.
#pragma once

#include <cstdint>
#include <vector>

#include "dtopp/ops/route.h"

namespace dtopp {

// What the counts say of one layer, or of all layers together.
struct ActivationSummary {
  double mean = 0;           // active experts per token
  double deviation = 0;      // standard deviation over tokens
  double imbalance = 0;      // max_i f_i / mean_i f_i
  int64_t dead_experts = 0;  // experts no token chose
};

class ActivationStatistics {
 public:
  explicit ActivationStatistics(int64_t num_layers = 0) : counts_E_(num_layers), histogram_(num_layers) {}

  // Adds the routing of `tokens` tokens in `layer`.
  void add(int64_t layer, const at::Tensor& expert_counts_E, const at::Tensor& active_histogram);
  void add(const ActivationStatistics& other);

  int64_t num_layers() const { return static_cast<int64_t>(counts_E_.size()); }
  // int64 [E] since construction; undefined before the first add.
  const at::Tensor& expert_counts(int64_t layer) const { return counts_E_[layer]; }
  // int64 [E + 1]: tokens with that many active experts; undefined before the first add.
  const at::Tensor& histogram(int64_t layer) const { return histogram_[layer]; }
  int64_t tokens() const;                 // tokens a layer has seen
  std::vector<int64_t> selected() const;  // token-expert pairs, per layer
  ActivationSummary summary(int64_t layer) const;
  // Mean and deviation over all (token, layer) pairs; imbalance is the mean over layers; dead experts their
  // sum.
  ActivationSummary summary() const;

 private:
  std::vector<at::Tensor> counts_E_;
  std::vector<at::Tensor> histogram_;
};

}  // namespace dtopp

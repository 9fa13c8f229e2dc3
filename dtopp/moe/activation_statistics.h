// Exact counts of which experts were used, over the micro-batches of one optimiser step (or a validation
// pass). They are kept as int64 tensors on the device; only summaries wait for it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dtopp/ops/route/route.h"

namespace dtopp {

// What the counts say of one layer, or of all layers together.
struct ActivationSummary {
  double mean = 0;           // active experts per token
  double deviation = 0;      // standard deviation over tokens; of all layers: over (token, layer) pairs
  double imbalance = 0;      // max_i f_i / mean_i f_i
  int64_t dead_experts = 0;  // experts no token chose
};

class ActivationStatistics {
 public:
  explicit ActivationStatistics(int64_t num_layers = 0) : num_layers_(num_layers) {}
  // Counts that are there already; see expert_counts, histogram, token_sums, tokens.
  ActivationStatistics(at::Tensor counts_LE, at::Tensor histogram_LN, at::Tensor token_sums_2,
                       int64_t tokens);

  // All counts as one f64 vector, that of several processes to be added up: whole numbers, exact below 2^53.
  // Of `num_experts` experts a layer; zeros before the first add. [vector_size(...)]
  at::Tensor to_vector(int64_t num_experts, const at::Device& device) const;
  static ActivationStatistics from_vector(const at::Tensor& values, int64_t num_layers, int64_t num_experts,
                                          int64_t tokens);
  static int64_t vector_size(int64_t num_layers, int64_t num_experts) {
    return num_layers == 0 ? 0 : kTokenSums + num_layers * (num_experts + num_experts + 1);
  }

  // Adds a batch: the routing of the same tokens in each layer.
  void add(std::span<const RouteOutput> layers);
  void add(const ActivationStatistics& other);

  int64_t num_layers() const { return num_layers_; }
  int64_t tokens() const { return tokens_; }  // tokens each layer has seen
  // int64 [L, E] since construction; undefined before the first add.
  const at::Tensor& expert_counts() const { return counts_LE_; }
  // int64 [L, E + 1]: tokens with that many active experts; undefined before the first add.
  const at::Tensor& histogram() const { return histogram_LN_; }
  // int64 [2]: the sums over tokens of n and n², n the experts a token used in all layers together (those of
  // a gate that is not 0, be it by underflow); undefined before the first add.
  const at::Tensor& token_sums() const { return token_sums_2_; }
  // int64 [L]: token-expert pairs of each layer. Not before the first add.
  at::Tensor selected() const { return counts_LE_.sum(1); }
  // Active experts a token in each layer; empty before the first add.
  std::vector<double> layer_means() const;
  ActivationSummary summary(int64_t layer) const;
  // Mean and deviation over all (token, layer) pairs; imbalance is the mean over layers; dead experts their
  // sum.
  ActivationSummary summary() const;
  // The standard deviation over tokens of a token's mean number of experts a layer.
  double token_mean_deviation() const;

 private:
  static constexpr int64_t kTokenSums = 2;

  int64_t num_layers_;
  int64_t tokens_ = 0;
  at::Tensor counts_LE_, histogram_LN_, token_sums_2_;
};

}  // namespace dtopp

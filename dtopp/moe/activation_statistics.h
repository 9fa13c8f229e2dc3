// Counts exactly how often experts are used, over the micro-batches of an optimizer step or a validation
// pass.
//
// The counts are int64 tensors on the device. Only summaries wait for the device.
#pragma once

#include <deque>
#include <span>

#include "dtopp/config/routing_config.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::moe {

// Summarizes the counts of one layer or of all layers.
struct ActivationSummary {
  double mean = 0;           // active experts per token
  double deviation = 0;      // standard deviation over tokens; for all layers, over (token, layer) pairs
  double imbalance = 0;      // max_i f_i / mean_i f_i
  int64_t dead_experts = 0;  // experts that no token chose
};

class ActivationStatistics {
 public:
  explicit ActivationStatistics(int64_t num_layers = 0) : num_layers_(num_layers) {}
  // Takes existing counts; see tokens_per_expert, histogram, token_sums and tokens for their shapes.
  ActivationStatistics(Tensor counts_LE, Tensor histogram_LN, Tensor token_sums_2, int64_t tokens);

  // All counts as one f64 vector, which ranks can add up; whole numbers, exact below 2^53. It is zero before
  // the first add. `num_experts` is the number of experts per layer.
  //
  // Shapes:        [vector_size(...)]
  Tensor to_vector(int64_t num_experts, const at::Device& device) const;
  static ActivationStatistics from_vector(const Tensor& values, int64_t num_layers, int64_t num_experts,
                                          int64_t tokens);
  static int64_t vector_size(int64_t num_layers, int64_t num_experts) {
    return num_layers == 0 ? 0 : kTokenSums + num_layers * (num_experts + num_experts + 1);
  }

  // Adds a batch. `layers` holds the routing of the same tokens in each layer.
  void add(std::span<const ops::RouteOutput> layers);
  void add(const ActivationStatistics& other);

  int64_t num_layers() const { return num_layers_; }
  int64_t tokens() const { return tokens_; }  // tokens that each layer has routed
  // int64 [L, E], since construction; undefined before the first add.
  const Tensor& tokens_per_expert() const { return counts_LE_; }
  // int64 [L, E + 1]: entry n counts the tokens with n active experts; undefined before the first add.
  const Tensor& histogram() const { return histogram_LN_; }
  // int64 [2]: the sums over tokens of n and n², where n is the number of experts that a token uses in all
  // layers together; undefined before the first add. An expert counts if its gate is not 0; a gate may
  // underflow to 0.
  const Tensor& token_sums() const { return token_sums_2_; }
  // int64 [L]: token-expert pairs per layer. Requires an earlier add.
  Tensor num_assignments() const { return counts_LE_.sum(1); }
  // Active experts per token, by layer; empty before the first add.
  std::vector<double> layer_means() const;
  ActivationSummary summary(int64_t layer) const;
  // Mean and standard deviation are over all (token, layer) pairs. Imbalance is the mean over layers,
  // dead_experts the sum.
  ActivationSummary summary() const;
  // The standard deviation, over tokens, of a token's mean number of experts per layer.
  double token_mean_deviation() const;

 private:
  static constexpr int64_t kTokenSums = 2;

  int64_t num_layers_;
  int64_t tokens_ = 0;
  Tensor counts_LE_, histogram_LN_, token_sums_2_;
};

// Checks whether the threshold controller meets its target.
//
// Sharp routers respond more steeply to p. Controller gains that were stable earlier can make a layer
// oscillate between one expert and all experts, at a multiple of the cost.

class BudgetWatch {
 public:
  // Steps that do not count because the controller may still converge, and the length of the observed window.
  static constexpr int64_t kSettling = 100;
  static constexpr size_t kSteps = 32;

  // steps: training.steps.
  BudgetWatch(const config::RoutingConfig& config, int64_t steps) : config_(config), steps_(steps) {}

  // Records one step with the active experts per token of each routed layer.
  //
  // Returns a warning with advice, once per object: when a controller's mean differs from T by more than T /
  // 2 on average over the last kSteps steps. Returns nothing unless a controller moves p.
  std::optional<std::string> observe(int64_t step, const std::vector<double>& active_L);

 private:
  config::RoutingConfig config_;
  int64_t steps_;
  std::vector<std::deque<double>> last_C_;  // per controller
  bool warned_ = false;
};

}  // namespace dtopp::moe

// Selects the experts of each token. One object serves all routed layers of a model.
//
// A router is a strategy with named state. Its functions are called per layer or per step, never per token:
//
// forward pass    select(layer, logits) -> gates, counts     for every layer
// after a step    update(sums of the counts over micro-batches and ranks)
// checkpoint      state(), load_state()                      router.safetensors
// metrics         metrics()                                  moe/<name>, moe/layer_XX/<name>
//
// select() of a token depends on its logits or id and the state only, so the choice does not depend on the
// batch.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/moe/expert_normalization.h"
#include "dtopp/ops/core/named_tensors.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::moe {

// Selects the tokens of a step that its statistics are over: every stride-th token of a sample. They do not
// depend on micro-batches or ranks, because strides divide a sample.

// The stride of the cumulative probabilities (ops/route/route.h). With more experts,
// fewer tokens are sampled: the comparisons between experts stay below 1 % of a step. The stride is at most
// 8, and a step samples at least 2,048 tokens if it has that many.
int64_t cumulative_prob_stride(int64_t num_experts, int64_t tokens_per_sample, int64_t tokens_per_step);

// The stride of the sums of logits (moe/expert_normalization.h). A step samples at least 1,024 tokens if it
// has that many.
int64_t logit_sum_stride(int64_t tokens_per_sample, int64_t tokens_per_step);

// The input of one layer and micro-batch.
struct RouterInput {
  int64_t layer = 0;
  // f32 [T, E + Z] with Z zero experts (model.zero_experts); undefined for a layer that routes by token id.
  // Their columns are in the result, too; route_tokens (expert_layer.h) removes them.
  Tensor logits_TE;
  Tensor scale;           // theta, f32 []
  bool training = false;  // whether update() will need RouteOutput::statistics
  Tensor ids_T = {};      // int64: the tokens' ids; undefined unless the model is a language model
};

// The inputs s of the softmax whose result is P (ops/route/route.h). Differentiable.
Tensor softmax_inputs(const RouterInput& input, config::Normalization normalization);

// The sums of an optimizer step, over its micro-batches and all ranks.
struct StepCounts {
  Tensor tokens_per_expert_LE;  // int64
  int64_t tokens = 0;           // tokens per layer
  Tensor statistics;            // whole numbers [Router::statistics_shape()]
  Tensor logit_sums_LS = {};    // whole numbers [Router::logit_sums_shape()]
};

class Router {
 public:
  Router(const config::RunConfig& config, const at::Device& device);
  virtual ~Router() = default;

  // For a layer with logits.
  virtual ops::RouteOutput select(const RouterInput& input) = 0;
  // For a layer without: selects as many experts as config().experts by the tokens' ids (hash.cpp).
  ops::RouteOutput select_by_id(const RouterInput& input);
  // Selects each token's likeliest experts: counts_T of them, int64 [T], at least 1. For a method whose gates
  // are probabilities (route), without zero experts.
  ops::RouteOutput select_likeliest(const RouterInput& input, const Tensor& counts_T) const;
  // Sets config().experts to the budget of optimizer step `step`, which counts from 0 (routing.schedule).
  // Call before the step. A new router has the budget of step 0.
  virtual void set_step(int64_t step);
  // Sets p before the first step: one value, or one per layer with routing.scope: layer. Later updates move
  // it from there. Throws std::logic_error without a controller.
  virtual void start_at(const std::vector<double>& thresholds);
  // The shape of a step's statistics: [layers, size], or [1, size] if the layers' RouteOutput::statistics are
  // added up. [0]: none.
  virtual std::vector<int64_t> statistics_shape() const { return {0}; }
  // The sums of a layer's logits for update() (moe/expert_normalization.h), int64 [logit_sums_shape()[1]].
  // x_TD: the router's inputs.
  Tensor logit_sums(const Tensor& logits_TC, const Tensor& x_TD) const;
  // [layers, size], or [0] if this method has no logits.
  std::vector<int64_t> logit_sums_shape() const;
  // The share of a step's logits that all tokens have in common, f64 [layers], from its logit sums.
  Tensor common_logit_share(const Tensor& logit_sums_LS) const;
  // With routing.expert_normalization; else null. A router that replaces this one for inference gets its
  // logits normalized by this one's.
  const std::shared_ptr<ExpertNormalization>& expert_normalization() const { return expert_normalization_; }
  // Updates the state after one optimizer step. Changes nothing if `applied`, bool [], is false. The host
  // does not wait for the device.
  virtual void update(const StepCounts& counts, const Tensor& applied);
  // The tensors that a run needs to resume with the same bits, f64 or int64, on the router's device. Never
  // modified in place.
  ops::NamedTensors state() const;
  // Throws std::invalid_argument if a tensor is missing, unknown, or has another shape.
  void load_state(const ops::NamedTensors& state);
  // Values of the last step for metrics, f64: one per layer, or one for all.
  virtual ops::NamedTensors metrics() const { return {}; }
  // A metric on the host; empty if there is none with this name. Waits for the device.
  std::vector<double> metric(std::string_view name) const;

  // The weight of this router's load-balance loss, f32 []; undefined: loss.load_balance.
  virtual Tensor load_balance_weight() const { return {}; }
  // The share f of tokens per expert for the load-balance loss of a layer: `own_E`, that of a micro-batch, or
  // with loss.batch_statistics: global that of the last applied step.
  Tensor share_E(int64_t layer, const Tensor& own_E) const;

  const config::RoutingConfig& config() const { return config_.routing; }
  int64_t num_layers() const { return config_.model.num_layers; }
  int64_t num_experts() const { return config_.model.num_experts; }  // without zero experts
  config::RouterZOn router_z_on() const { return config_.loss.router_z_on; }

 protected:
  // Appends the tensors of state().
  virtual void list_state(ops::StateTensors& list);
  // Called after load_state() has replaced them.
  virtual void loaded() {}
  // The budget of the step after that of set_step().
  const std::vector<double>& next_experts() const { return next_experts_; }
  const at::Device& device() const { return device_; }
  // Whether biases move after the step of set_step() (routing.bias_until).
  bool moves_biases() const;
  // `route` with this configuration, for top_k experts or, with 0, for the threshold p. bias_E: see
  // ops::route; undefined: none.
  ops::RouteOutput route_by(const RouterInput& input, int64_t top_k, const Tensor& threshold,
                            const Tensor& bias_E = {}, std::string_view bias_on = "logit") const;
  // `route` with gate relu or sigmoid (ops/route/route.h): a logit alone decides whether its expert is
  // selected. The arguments after `gate` are those of sigmoid.
  ops::RouteOutput route_above(const RouterInput& input, std::string_view gate, const Tensor& cut_E = {},
                               int64_t first_experts = 0) const;
  // The same gates and counts for a given choice: bool [T, E].
  ops::RouteOutput route_to(const RouterInput& input, const Tensor& routing_map_TE) const;

 private:
  ops::RouteOutput with_l2_gates(ops::RouteOutput output) const;
  int64_t tokens_in_logit_sums() const { return step_tokens() / logit_sum_stride_; }
  int64_t step_tokens() const {
    return config_.training.global_batch_size * config_.model.tokens_per_sample();
  }

  config::RunConfig config_;  // with the experts of the step
  config::RoutingConfig configured_;
  std::vector<double> next_experts_;
  int64_t step_ = 0, logit_sum_stride_;
  at::Device device_;
  Tensor no_threshold_;  // f64 []: for top_k experts
  std::shared_ptr<ExpertNormalization> expert_normalization_;
  std::vector<Tensor> expert_LVK_;  // int32: the experts of each id; undefined until a layer needs them
  Tensor tokens_per_expert_LE_;     // int64: of the last applied step; undefined without global statistics
};

}  // namespace dtopp::moe

// Computes a Mixture-of-Experts feed-forward layer: router, gates and experts.
//
// Source:        paper, Eqs. 1-4 and 6
#pragma once

#include <functional>

#include "dtopp/config/routing_config.h"
#include "dtopp/moe/cumulative_prob_sampling.h"
#include "dtopp/ops/route/route.h"

namespace dtopp {

struct ExpertLayerWeights {
  at::Tensor router_ED;     // f32 in every compute precision
  at::Tensor router_scale;  // theta, f32 []; undefined unless normalization is dynamic
  at::Tensor gate_up_EGD;
  at::Tensor down_EDF;
};

struct ExpertLayerOutput {
  at::Tensor y_TD;
  RouteOutput routing;
};

struct RouterOptions {
  // The logits for the router z-loss: the router's output z, or s, the input of the softmax
  // (ops/route/route.h).
  RouterZOn router_z_on = RouterZOn::kRaw;
  CumulativeProbSampling sampling{};
  // bool [T, E]: a routing map that replaces the router's choice. If it is undefined, the router chooses.
  at::Tensor routing_map_TE{};
};

// Runs the router only: selects experts and computes their gates. threshold: p, f64 [] on x's device.
RouteOutput route_tokens(const at::Tensor& x_TD, const ExpertLayerWeights& weights,
                         const RoutingConfig& config, const at::Tensor& threshold,
                         const RouterOptions& options = {});

// Computes the experts of a layer with the arguments and the result of moe_ffn (ops/moe_ffn/moe_ffn.h). With
// expert parallelism the weights are this rank's experts only (moe/token_dispatcher.h).
using ExpertBackend =
    std::function<at::Tensor(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                             const at::Tensor& gate_up_proj, const at::Tensor& down_proj, int64_t capacity)>;

struct ExpertLayerOptions {
  int64_t capacity = 0;  // capacity, as in moe_ffn
  RouterOptions router{};
  ExpertBackend experts{};  // empty: moe_ffn
};

ExpertLayerOutput expert_layer(const at::Tensor& x_TD, const ExpertLayerWeights& weights,
                               const RoutingConfig& config, const at::Tensor& threshold,
                               const ExpertLayerOptions& options);

// The unweighted losses of one layer (paper, appendix "Loss Designs").
struct RouterLosses {
  at::Tensor load_balance;  // E sum_i f_i Q_i; f is the share of tokens sent to expert i; the gradient is
                            // through Q only
  at::Tensor dynamic;       // mean entropy of P
  at::Tensor router_z;      // mean squared logsumexp of the logits
};

// share_E: f, of this micro-batch or of more tokens.
RouterLosses router_losses(const RouteOutput& routing, const at::Tensor& share_E);

}  // namespace dtopp

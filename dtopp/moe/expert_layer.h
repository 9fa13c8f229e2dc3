// A Mixture-of-Experts feed-forward layer: router, gates, experts (paper, Eqs. 1-4 and 6).
#pragma once

#include <functional>

#include "dtopp/config/routing_config.h"
#include "dtopp/moe/mass_sampling.h"
#include "dtopp/ops/route/route.h"

namespace dtopp {

struct ExpertLayerWeights {
  at::Tensor router_ED;     // f32 in every precision
  at::Tensor router_scale;  // theta, f32 []; undefined unless normalization is dynamic
  at::Tensor gate_up_EGD;
  at::Tensor down_EDF;
};

struct ExpertLayerOutput {
  at::Tensor y_TD;
  RouteOutput routing;
};

struct RouterOptions {
  // Which logits router_z is of: z as the router gives them, or s, which become probabilities
  // (ops/route/route.h).
  RouterZOn router_z_on = RouterZOn::kRaw;
  MassSampling masses{};
  // bool [T, E]: the experts that are taken, whatever the router would choose; undefined: it chooses.
  at::Tensor selection_TE{};
};

// The router alone: which experts, with which gates. threshold: p, f64 [] on x's device.
RouteOutput route_tokens(const at::Tensor& x_TD, const ExpertLayerWeights& weights,
                         const RoutingConfig& config, const at::Tensor& threshold,
                         const RouterOptions& options = {});

// What computes a layer's experts: moe_ffn (ops/moe_ffn/moe_ffn.h), or what does so where the weights are
// those of some of the experts (moe/expert_exchange.h). The arguments and result are moe_ffn's.
using ExpertCompute =
    std::function<at::Tensor(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                             const at::Tensor& gate_up_proj, const at::Tensor& down_proj, int64_t max_pairs)>;

struct ExpertLayerOptions {
  int64_t max_pairs = 0;  // as in moe_ffn
  RouterOptions router{};
  ExpertCompute experts{};  // none: moe_ffn
};

ExpertLayerOutput expert_layer(const at::Tensor& x_TD, const ExpertLayerWeights& weights,
                               const RoutingConfig& config, const at::Tensor& threshold,
                               const ExpertLayerOptions& options);

// Unweighted losses of one layer (paper, appendix "Loss Designs").
struct RouterLosses {
  at::Tensor load_balance;  // E sum_i f_i Q_i; f = share of tokens dispatched to i, gradient through Q only
  at::Tensor dynamic;       // mean entropy of P
  at::Tensor router_z;      // mean squared logsumexp of the logits
};

// share_E: f, of this micro-batch or of more tokens.
RouterLosses router_losses(const RouteOutput& routing, const at::Tensor& share_E);

}  // namespace dtopp

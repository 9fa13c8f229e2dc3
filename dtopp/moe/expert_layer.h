// Computes a Mixture-of-Experts feed-forward layer: router, gates and experts.
//
// Source:        paper, Eqs. 1-4 and 7
#pragma once

#include "dtopp/distributed/collectives.h"
#include "dtopp/moe/experts.h"
#include "dtopp/moe/router.h"

namespace dtopp::moe {

struct ExpertLayerWeights {
  Tensor router_ED;           // with rows for zero experts after those of the E experts; f32 in every compute
                              // precision; undefined for a layer that routes by token id
  Tensor router_scale;        // theta, f32 []; undefined unless normalization is dynamic
  Tensor gate_up_EGD;         // the experts that Routing::experts computes with: all, or this rank's
  Tensor down_EDF;            // likewise
  bool copies_input = false;  // zero experts return x (model.zero_kind)
};

struct ExpertLayerOutput {
  Tensor y_TD;  // the experts' outputs weighted by the gates, without the residual
  ops::RouteOutput routing;
};

// The router and the experts of a forward pass.
struct Routing {
  std::shared_ptr<Router> router{};                    // null: a dense model
  std::shared_ptr<AllToAllTokenDispatcher> experts{};  // null: this rank holds all experts
  const CapacityPredictor* capacities = nullptr;       // for experts of this rank; null: the exact capacity
  bool training = false;                               // the router's update will need this pass's statistics
  // Ranks that solve for thresholds together (models/solve_thresholds.h); null: this one alone.
  distributed::Collectives* ranks = nullptr;
  // The activations that the backward pass computes again.
  config::Recompute recompute = config::Recompute::kNone;
  Tensor ids_T{};  // int64: the ids of the pass's tokens; a language model sets it
  // int64 [T]: how many of its likeliest experts each token uses, instead of the router's selection;
  // undefined: the router selects.
  Tensor counts_T = {};
  // Normalizes the logits before the router gets them; null: nothing does.
  std::shared_ptr<const ExpertNormalization> expert_normalization = {};
  // On a CPU (in bf16: without AMX), a token has the same bits whatever the other tokens are. Without
  // gradients.
  bool token_by_token = false;
};

// A router with its expert normalization. router: null for a dense model.
Routing routing_by(const std::shared_ptr<Router>& router);

// Runs the router only: selects experts and computes their gates, without those of zero experts. `layer`
// counts routed layers from 0.
// Requires routing.router.
ops::RouteOutput route_tokens(const Tensor& x_TD, const ExpertLayerWeights& weights, int64_t layer,
                              const Routing& routing);

// Runs router and experts. Requires routing.router. With copies_input, y also has x times the gates of zero
// experts.
//
// Shapes:        x_TD [T, D], in the compute precision -> y_TD alike
// Collective:    if routing.experts is the token dispatcher: every rank of the EP group, in the backward pass
//                too
ExpertLayerOutput expert_layer(const Tensor& x_TD, const ExpertLayerWeights& weights, int64_t layer,
                               const Routing& routing);

// The load-balance loss of one layer, E sum_i f_i Q_i (paper, appendix "Loss Designs"). share_E: f, the share
// of tokens sent to expert i, of this micro-batch or of more tokens (Router::share_E). The gradient is
// through Q only.
Tensor load_balance_loss(const ops::RouteOutput& routing, const Tensor& share_E);

}  // namespace dtopp::moe

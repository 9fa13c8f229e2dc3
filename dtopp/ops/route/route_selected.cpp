#include "dtopp/ops/route/route_selected.h"

namespace dtopp::ops {
namespace {

using Routed = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Routed route_selected_op(const at::Tensor& logits_TE, const at::Tensor& scale,
                         const at::Tensor& routing_map_TE, c10::string_view normalization, bool renormalize) {
  const RouteOutput out = route_selected(logits_TE, scale, routing_map_TE,
                                         {normalization.data(), normalization.size()}, renormalize);
  return {out.gates_TE, out.tokens_per_expert_E, out.active_histogram, out.mean_prob_E, out.entropy,
          out.router_z};
}

}  // namespace

void set_counts(const at::Tensor& routing_map_TE, RouteOutput& out) {
  const at::Tensor active_T = routing_map_TE.sum(1);
  const at::Tensor none = at::zeros({routing_map_TE.size(1) + 1}, active_T.options());
  out.tokens_per_expert_E = routing_map_TE.sum(0);
  out.active_histogram = none.index_add(0, active_T, at::ones_like(active_T));
}

RouteOutput route_selected(const at::Tensor& logits_TE, const at::Tensor& scale,
                           const at::Tensor& routing_map_TE, std::string_view normalization,
                           bool renormalize) {
  TORCH_CHECK(routing_map_TE.scalar_type() == at::kBool &&
                  routing_map_TE.sym_sizes() == logits_TE.sym_sizes() &&
                  routing_map_TE.device() == logits_TE.device(),
              "route_selected: expected a selection of dtype bool and shape ", logits_TE.sym_sizes(), " on ",
              logits_TE.device(), ", got ", routing_map_TE.scalar_type(), " ", routing_map_TE.sym_sizes(),
              " on ", routing_map_TE.device());
  TORCH_CHECK(logits_TE.dim() == 2, "route_selected: expected logits of shape [tokens, experts], got ",
              logits_TE.sym_sizes());
  const int64_t E = logits_TE.sym_size(1).guard_int(__FILE__, __LINE__);
  // With all experts selected and no renormalization, the gates are P.
  const at::Tensor no_threshold = at::zeros({}, logits_TE.options().dtype(at::kDouble));
  RouteOutput out = route(logits_TE, scale, no_threshold, normalization, /*top_k=*/E, /*max_experts=*/0,
                          /*renormalize=*/false);
  out.gates_TE = at::where(routing_map_TE, out.gates_TE, at::zeros({}, out.gates_TE.options()));
  if (renormalize) {
    const at::Tensor sum_T1 = out.gates_TE.sum({1}, /*keepdim=*/true);
    // Other gates stay 0, also if the sum is 0 or NaN.
    out.gates_TE = out.gates_TE / at::where(routing_map_TE, sum_T1, at::ones({}, sum_T1.options()));
  }
  set_counts(routing_map_TE, out);
  return out;
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def(
      "route_selected(Tensor logits_TE, Tensor scale, Tensor routing_map_TE, *, str "
      "normalization=\"dynamic\", "
      "bool renormalize=True) -> (Tensor gates_TE, Tensor tokens_per_expert_E, Tensor active_histogram, "
      "Tensor mean_prob_E, Tensor entropy, Tensor router_z)",
      route_selected_op);
}

}  // namespace dtopp::ops

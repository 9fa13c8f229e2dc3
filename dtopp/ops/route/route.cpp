#include "dtopp/ops/route/route.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "dtopp/ops/core/call_op.h"

namespace dtopp::ops {
namespace {

using GradientPair = std::tuple<Tensor, Tensor>;

RouteTuple route_meta(const Tensor& logits_TE, const Tensor& scale, const Tensor& threshold,
                      c10::string_view normalization, int64_t top_k, int64_t max_experts, bool renormalize,
                      const OptionalTensor& bias_E, c10::string_view bias_on, c10::string_view gate,
                      const OptionalTensor& cut_E) {
  check_route(logits_TE, scale, threshold, normalization, top_k, max_experts, renormalize, bias_E, bias_on,
              gate, cut_E);
  const auto real = logits_TE.options().dtype(accumulator_type(logits_TE));
  const auto integer = real.dtype(at::kLong);
  const c10::SymInt experts = logits_TE.sym_size(1);
  return {at::empty_symint(logits_TE.sym_sizes(), real),
          at::empty_symint({experts}, integer),
          at::empty_symint({experts + 1}, integer),
          at::empty_symint({experts}, real),
          at::empty({}, real),
          at::empty({}, real),
          at::empty({2}, integer)};
}

GradientPair route_backward_meta(const Tensor& logits_TE, const Tensor& scale, const Tensor& gates_TE,
                                 const OptionalTensor& grad_gates_TE, const OptionalTensor& grad_mean_prob_E,
                                 const OptionalTensor& grad_entropy, const OptionalTensor& grad_router_z,
                                 c10::string_view normalization, bool /*renormalize*/,
                                 c10::string_view /*gate*/) {
  check_route_backward(logits_TE, scale, gates_TE, grad_gates_TE, grad_mean_prob_E, grad_entropy,
                       grad_router_z, normalization);
  return {at::empty_symint(logits_TE.sym_sizes(), logits_TE.options()), at::empty({}, scale.options())};
}

OptionalTensor defined_or_none(const Tensor& grad) {
  return grad.defined() ? OptionalTensor(grad) : std::nullopt;
}

struct RouteFunction : torch::autograd::Function<RouteFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& logits_TE, const Tensor& scale,
                               const Tensor& threshold, const std::string& normalization, int64_t top_k,
                               int64_t max_experts, bool renormalize, const OptionalTensor& bias_E,
                               const std::string& bias_on, const std::string& gate,
                               const OptionalTensor& cut_E) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [gates_TE, counts_E, histogram, mean_prob_E, entropy, router_z, mass] =
        call_op<"dtopp::route", decltype(route_meta)>(logits_TE, scale, threshold, normalization, top_k,
                                                      max_experts, renormalize, bias_E, bias_on, gate, cut_E);
    context->save_for_backward({logits_TE, scale, gates_TE});
    context->saved_data["normalization"] = normalization;
    context->saved_data["renormalize"] = renormalize;
    context->saved_data["gate"] = gate;
    context->set_materialize_grads(false);
    context->mark_non_differentiable({counts_E, histogram, mass});
    return {gates_TE, counts_E, histogram, mean_prob_E, entropy, router_z, mass};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    auto [grad_logits_TE, grad_scale] = call_op<"dtopp::route_backward", decltype(route_backward_meta)>(
        saved[0], saved[1], saved[2], defined_or_none(grads[0]), defined_or_none(grads[3]),
        defined_or_none(grads[4]), defined_or_none(grads[5]),
        context->saved_data["normalization"].toStringRef(), context->saved_data["renormalize"].toBool(),
        context->saved_data["gate"].toStringRef());
    return {grad_logits_TE, grad_scale, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  }
};

RouteTuple route_autograd(const Tensor& logits_TE, const Tensor& scale, const Tensor& threshold,
                          c10::string_view normalization, int64_t top_k, int64_t max_experts,
                          bool renormalize, const OptionalTensor& bias_E, c10::string_view bias_on,
                          c10::string_view gate, const OptionalTensor& cut_E) {
  auto out = RouteFunction::apply(logits_TE, scale, threshold, std::string(normalization), top_k, max_experts,
                                  renormalize, bias_E, std::string(bias_on), std::string(gate), cut_E);
  return {out[0], out[1], out[2], out[3], out[4], out[5], out[6]};
}

using Routed = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Routed route_selected_op(const Tensor& logits_TE, const Tensor& scale, const Tensor& routing_map_TE,
                         c10::string_view normalization, bool renormalize) {
  const RouteOutput out = route_selected(logits_TE, scale, routing_map_TE,
                                         {normalization.data(), normalization.size()}, renormalize);
  return {out.gates_TE, out.tokens_per_expert_E, out.active_histogram, out.mean_prob_E, out.entropy,
          out.router_z};
}

}  // namespace

void check_router_logits(const char* op, const Tensor& logits_TE, const Tensor& scale,
                         c10::string_view normalization) {
  const auto dtype = logits_TE.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble, op,
              ": expected logits of dtype float32, bfloat16 or float64, got ", dtype);
  TORCH_CHECK(logits_TE.dim() == 2, op, ": expected logits of shape [tokens, experts], got ",
              logits_TE.sym_sizes());
  TORCH_CHECK(logits_TE.sym_size(1) >= 1, op, ": expected logits of at least 1 expert, got shape ",
              logits_TE.sym_sizes());
  TORCH_CHECK(
      scale.scalar_type() == at::kFloat || (dtype == at::kDouble && scale.scalar_type() == at::kDouble), op,
      ": expected a scale of dtype float32, got ", scale.scalar_type());
  TORCH_CHECK(scale.dim() == 0, op, ": expected a scale of shape [], got ", scale.sym_sizes());
  TORCH_CHECK(scale.device() == logits_TE.device(), op, ": expected a scale on the logits' device ",
              logits_TE.device(), ", got ", scale.device());
  TORCH_CHECK(normalization == "none" || normalization == "fixed" || normalization == "dynamic", op,
              ": expected normalization none, fixed or dynamic, got '", normalization, "'");
}

void check_route(const Tensor& logits_TE, const Tensor& scale, const Tensor& threshold,
                 c10::string_view normalization, int64_t top_k, int64_t max_experts, bool renormalize,
                 const OptionalTensor& bias_E, c10::string_view bias_on, c10::string_view gate,
                 const OptionalTensor& cut_E) {
  check_router_logits("route", logits_TE, scale, normalization);
  const c10::SymInt experts = logits_TE.sym_size(1);
  TORCH_CHECK(threshold.scalar_type() == at::kDouble, "route: expected a threshold of dtype float64, got ",
              threshold.scalar_type());
  TORCH_CHECK(threshold.dim() == 0, "route: expected a threshold of shape [], got ", threshold.sym_sizes());
  TORCH_CHECK(threshold.device() == logits_TE.device(), "route: expected a threshold on the logits' device ",
              logits_TE.device(), ", got ", threshold.device());
  TORCH_CHECK(top_k >= 0 && top_k <= experts, "route: expected top_k from 0 to the number of experts ",
              experts, ", got ", top_k);
  TORCH_CHECK(max_experts >= 0, "route: expected max_experts of at least 0, got ", max_experts);
  const Expected like_gates{accumulator_type(logits_TE), logits_TE.device()};
  if (bias_E) check_tensor("route", "bias", *bias_E, like_gates, {experts});
  TORCH_CHECK(bias_on == "logit" || bias_on == "score" || bias_on == "probability",
              "route: expected bias_on logit, score or probability, got '", bias_on, "'");
  TORCH_CHECK(gate == "probability" || gate == "relu" || gate == "sigmoid",
              "route: expected gate probability, relu or sigmoid, got '", gate, "'");
  TORCH_CHECK(cut_E.has_value() == (gate == "sigmoid"),
              "route: expected a cut exactly with gate sigmoid, got ", cut_E ? "one" : "none", " with ",
              gate);
  if (gate == "probability") return;
  TORCH_CHECK(!renormalize && !bias_E, "route: gate ", gate, " takes neither renormalize nor a bias");
  if (!cut_E) return;
  TORCH_CHECK(top_k >= 1, "route: expected top_k of at least 1 with gate sigmoid, got ", top_k);
  check_tensor("route", "cut", *cut_E, like_gates, {experts});
}

BiasOn bias_on_of(const OptionalTensor& bias_E, c10::string_view bias_on) {
  if (!bias_E) return BiasOn::kNothing;
  if (bias_on == "probability") return BiasOn::kProbability;
  return bias_on == "logit" ? BiasOn::kLogit : BiasOn::kScore;
}

Tensor kernel_bias(const OptionalTensor& bias_E, c10::string_view bias_on) {
  if (!bias_E) return {};
  return bias_on == "logit" ? bias_E->exp() : bias_E->contiguous();
}

void check_route_backward(const Tensor& logits_TE, const Tensor& scale, const Tensor& gates_TE,
                          const OptionalTensor& grad_gates_TE, const OptionalTensor& grad_mean_prob_E,
                          const OptionalTensor& grad_entropy, const OptionalTensor& grad_router_z,
                          c10::string_view normalization) {
  check_router_logits("route_backward", logits_TE, scale, normalization);
  const auto check = [&](const char* name, const Tensor& tensor, c10::SymIntArrayRef sizes) {
    check_tensor("route_backward", name, tensor, {accumulator_type(logits_TE), logits_TE.device()}, sizes);
  };
  const c10::SymIntArrayRef sizes_TE = logits_TE.sym_sizes(), sizes_E = sizes_TE.slice(1);
  check("gates", gates_TE, sizes_TE);
  if (grad_gates_TE) check("grad_gates", *grad_gates_TE, sizes_TE);
  if (grad_mean_prob_E) check("grad_mean_prob", *grad_mean_prob_E, sizes_E);
  if (grad_entropy) check("grad_entropy", *grad_entropy, {});
  if (grad_router_z) check("grad_router_z", *grad_router_z, {});
}

RouteOutput route(const Tensor& logits_TE, const Tensor& scale, const Tensor& threshold,
                  std::string_view normalization, int64_t top_k, int64_t max_experts, bool renormalize,
                  const OptionalTensor& bias_E, std::string_view bias_on, std::string_view gate,
                  const OptionalTensor& cut_E) {
  auto [gates_TE, counts_E, histogram, mean_prob_E, entropy, router_z, mass] =
      call_op<"dtopp::route", decltype(route_meta)>(logits_TE, scale, threshold, normalization, top_k,
                                                    max_experts, renormalize, bias_E, bias_on, gate, cut_E);
  return {gates_TE, counts_E, histogram, mean_prob_E, entropy, router_z, mass};
}

void set_counts(const Tensor& routing_map_TE, RouteOutput& out) {
  const Tensor active_T = routing_map_TE.sum(1);
  const Tensor none = at::zeros({routing_map_TE.size(1) + 1}, active_T.options());
  out.tokens_per_expert_E = routing_map_TE.sum(0);
  out.active_histogram = none.index_add(0, active_T, at::ones_like(active_T));
}

RouteOutput route_selected(const Tensor& logits_TE, const Tensor& scale, const Tensor& routing_map_TE,
                           std::string_view normalization, bool renormalize) {
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
  const Tensor no_threshold = at::zeros({}, logits_TE.options().dtype(at::kDouble));
  RouteOutput out = route(logits_TE, scale, no_threshold, normalization, /*top_k=*/E, /*max_experts=*/0,
                          /*renormalize=*/false);
  out.gates_TE = at::where(routing_map_TE, out.gates_TE, at::zeros({}, out.gates_TE.options()));
  if (renormalize) {
    const Tensor sum_T1 = out.gates_TE.sum({1}, /*keepdim=*/true);
    // Other gates stay 0, also if the sum is 0 or NaN.
    out.gates_TE = out.gates_TE / at::where(routing_map_TE, sum_T1, at::ones({}, sum_T1.options()));
  }
  set_counts(routing_map_TE, out);
  return out;
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def(
      "route(Tensor logits_TE, Tensor scale, Tensor threshold, *, str normalization=\"dynamic\", int "
      "top_k=0, int max_experts=0, bool renormalize=True, Tensor? bias_E=None, str bias_on=\"logit\", str "
      "gate=\"probability\", Tensor? cut_E=None) -> (Tensor gates_TE, Tensor tokens_per_expert_E, Tensor "
      "active_histogram, Tensor mean_prob_E, Tensor entropy, Tensor router_z, Tensor mass)");
  m.def(
      "route_backward(Tensor logits_TE, Tensor scale, Tensor gates_TE, Tensor? grad_gates_TE, "
      "Tensor? grad_mean_prob_E, Tensor? grad_entropy, Tensor? grad_router_z, str normalization, "
      "bool renormalize, str gate=\"probability\") -> (Tensor grad_logits_TE, Tensor grad_scale)");
  m.def(
      "route_selected(Tensor logits_TE, Tensor scale, Tensor routing_map_TE, *, str "
      "normalization=\"dynamic\", bool renormalize=True) -> (Tensor gates_TE, Tensor tokens_per_expert_E, "
      "Tensor active_histogram, Tensor mean_prob_E, Tensor entropy, Tensor router_z)",
      route_selected_op);
}

TORCH_LIBRARY_IMPL(dtopp, Autograd, m) {
  m.impl("route", route_autograd);
  m.impl("route_backward", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(dtopp, Meta, m) {
  m.impl("route", route_meta);
  m.impl("route_backward", route_backward_meta);
}

}  // namespace dtopp::ops

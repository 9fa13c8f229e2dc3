#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/graph_task.h>

#include "dtopp/ops/core/call_op.h"

namespace dtopp::ops {
namespace {

using LossTuple = std::tuple<Tensor, Tensor, Tensor>;
using ForwardTuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using TensorPair = std::tuple<Tensor, Tensor>;

at::TensorOptions loss_options(const Tensor& x_TD) { return x_TD.options().dtype(accumulator_type(x_TD)); }

ForwardTuple forward_meta(const Tensor& x_TD, const Tensor& weight_VD, const Tensor& targets_T,
                          double /*z_weight*/, int64_t /*ignore_index*/, bool need_x, bool need_weight) {
  check_linear_cross_entropy("linear_cross_entropy_forward", x_TD, weight_VD, targets_T);
  const auto mean = [&] { return at::empty({}, loss_options(x_TD)); };
  const auto like = [](bool need, const Tensor& input) {
    return need ? at::empty_symint(input.sym_sizes(), input.options()) : at::empty({0}, input.options());
  };
  return {mean(), mean(), mean(), like(need_x, x_TD), like(need_weight, weight_VD)};
}

// The loss without gradients, on any device.
LossTuple loss_alone(const Tensor& x_TD, const Tensor& weight_VD, const Tensor& targets_T, double z_weight,
                     int64_t ignore_index) {
  check_linear_cross_entropy("linear_cross_entropy", x_TD, weight_VD, targets_T);
  auto [loss, nll, z, no_grad_x, no_grad_weight] =
      call_op<"dtopp::linear_cross_entropy_forward", decltype(forward_meta)>(
          x_TD, weight_VD, targets_T, z_weight, ignore_index, false, false);
  return {loss, nll, z};
}

TensorPair log_probs_meta(const Tensor& x_TD, const Tensor& weight_VD, const Tensor& targets_T) {
  check_linear_cross_entropy("token_log_probs", x_TD, weight_VD, targets_T);
  return {at::empty_symint({x_TD.sym_size(0)}, loss_options(x_TD)),
          at::empty_symint({x_TD.sym_size(0)}, x_TD.options().dtype(at::kLong))};
}

// The forward pass forms the gradients while a chunk's probabilities exist, and the backward pass scales
// them. It scales them in place unless the graph is kept: a second copy of the weight's gradient would be the
// largest tensor of a training step.
struct LossFunction : torch::autograd::Function<LossFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x_TD, const Tensor& weight_VD,
                               const Tensor& targets_T, double z_weight, int64_t ignore_index, bool need_x,
                               bool need_weight) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    auto [loss, nll, z, grad_x_TD, grad_weight_VD] =
        call_op<"dtopp::linear_cross_entropy_forward", decltype(forward_meta)>(
            x_TD, weight_VD, targets_T, z_weight, ignore_index, need_x, need_weight);
    if (need_x) context->saved_data["grad_x"] = grad_x_TD;
    if (need_weight) context->saved_data["grad_weight"] = grad_weight_VD;
    context->mark_non_differentiable({nll, z});
    return {loss, nll, z};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const bool keep = torch::autograd::get_current_graph_task_keep_graph();
    const auto scaled = [&](const char* name) {
      const auto saved = context->saved_data.find(name);
      TORCH_CHECK(
          saved != context->saved_data.end(),
          "linear_cross_entropy: expected retain_graph=True before a second backward pass, got a graph "
          "whose gradients were freed");
      if (keep) return saved->second.toTensor() * grads[0];
      Tensor grad = std::move(saved->second).toTensor();
      context->saved_data.erase(name);
      return grad.mul_(grads[0]);
    };
    variable_list out(7);
    if (context->needs_input_grad(0)) out[0] = scaled("grad_x");
    if (context->needs_input_grad(1)) out[1] = scaled("grad_weight");
    return out;
  }
};

LossTuple loss_autograd(const Tensor& x_TD, const Tensor& weight_VD, const Tensor& targets_T, double z_weight,
                        int64_t ignore_index) {
  check_linear_cross_entropy("linear_cross_entropy", x_TD, weight_VD, targets_T);
  if (at::GradMode::is_enabled() && (x_TD.requires_grad() || weight_VD.requires_grad())) {
    auto out = LossFunction::apply(x_TD, weight_VD, targets_T, z_weight, ignore_index, x_TD.requires_grad(),
                                   weight_VD.requires_grad());
    return {out[0], out[1], out[2]};
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  const CrossEntropy out = linear_cross_entropy(x_TD, weight_VD, targets_T, z_weight, ignore_index);
  return {out.loss, out.nll, out.z};
}

TensorPair log_probs_autograd(const Tensor& x_TD, const Tensor& weight_VD, const Tensor& targets_T) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return token_log_probs(x_TD, weight_VD, targets_T);
}

}  // namespace

void check_linear_cross_entropy(const char* op, const Tensor& x_TD, const Tensor& weight_VD,
                                const Tensor& targets_T) {
  const auto dtype = x_TD.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble, op,
              ": expected x of dtype float32, bfloat16 or float64, got ", dtype);
  TORCH_CHECK(weight_VD.scalar_type() == dtype, op, ": expected a weight of x's dtype ", dtype, ", got ",
              weight_VD.scalar_type());
  TORCH_CHECK(targets_T.scalar_type() == at::kLong, op, ": expected targets of dtype int64, got ",
              targets_T.scalar_type());
  TORCH_CHECK(x_TD.dim() == 2, op, ": expected x of shape [tokens, hidden], got ", x_TD.sym_sizes());
  TORCH_CHECK(weight_VD.dim() == 2 && weight_VD.sym_size(1) == x_TD.sym_size(1), op,
              ": expected a weight of shape [vocabulary, ", x_TD.sym_size(1), "], got ",
              weight_VD.sym_sizes());
  TORCH_CHECK(targets_T.dim() == 1 && targets_T.sym_size(0) == x_TD.sym_size(0), op,
              ": expected targets of shape [", x_TD.sym_size(0), "], got ", targets_T.sym_sizes());
  TORCH_CHECK(weight_VD.device() == x_TD.device() && targets_T.device() == x_TD.device(), op,
              ": expected weight and targets on x's device ", x_TD.device(), ", got ", weight_VD.device(),
              " and ", targets_T.device());
}

CrossEntropy linear_cross_entropy(const Tensor& x_TD, const Tensor& weight_VD, const Tensor& targets_T,
                                  double z_weight, int64_t ignore_index) {
  auto [loss, nll, z] = call_op<"dtopp::linear_cross_entropy", decltype(loss_alone)>(
      x_TD, weight_VD, targets_T, z_weight, ignore_index);
  return {loss, nll, z};
}

std::tuple<Tensor, Tensor> token_log_probs(const Tensor& x_TD, const Tensor& weight_VD,
                                           const Tensor& targets_T) {
  return call_op<"dtopp::token_log_probs", decltype(log_probs_meta)>(x_TD, weight_VD, targets_T);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def(
      "linear_cross_entropy(Tensor x_TD, Tensor weight_VD, Tensor targets_T, *, float z_weight=0.0, "
      "int ignore_index=-100) -> (Tensor loss, Tensor nll, Tensor z)");
  // grad_x_TD and grad_weight_VD are the gradients of loss, or empty if they are not needed.
  m.def(
      "linear_cross_entropy_forward(Tensor x_TD, Tensor weight_VD, Tensor targets_T, float z_weight, "
      "int ignore_index, bool need_x, bool need_weight) -> "
      "(Tensor loss, Tensor nll, Tensor z, Tensor grad_x_TD, Tensor grad_weight_VD)");
  m.def(
      "token_log_probs(Tensor x_TD, Tensor weight_VD, Tensor targets_T) -> "
      "(Tensor log_probs_T, Tensor greedy_T)");
}

TORCH_LIBRARY_IMPL(dtopp, Autograd, m) {
  m.impl("linear_cross_entropy", loss_autograd);
  m.impl("linear_cross_entropy_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("token_log_probs", log_probs_autograd);
}

TORCH_LIBRARY_IMPL(dtopp, CompositeExplicitAutograd, m) { m.impl("linear_cross_entropy", loss_alone); }

TORCH_LIBRARY_IMPL(dtopp, Meta, m) {
  m.impl("linear_cross_entropy_forward", forward_meta);
  m.impl("token_log_probs", log_probs_meta);
}

}  // namespace dtopp::ops

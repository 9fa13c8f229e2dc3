#include "dtopp/ops/moe_ffn.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "dtopp/ops/moe_ffn_kernel.h"

namespace dtopp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using TensorPair = std::tuple<at::Tensor, at::Tensor>;
using TensorQuadruple = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

TensorPair call_forward(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& pairs_A2,
                        const at::Tensor& gate_up_proj, const at::Tensor& down_proj) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtopp::moe_ffn_forward", "")
                             .typed<TensorPair(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                               const at::Tensor&, const at::Tensor&)>();
  return op.call(x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
}

TensorQuadruple call_backward(const at::Tensor& grad_y_TD, const at::Tensor& x_TD, const at::Tensor& gates_TE,
                              const at::Tensor& gate_up_proj, const at::Tensor& down_proj,
                              const at::Tensor& pre_activations_AG, std::array<bool, 4> needed) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("dtopp::moe_ffn_backward", "")
          .typed<TensorQuadruple(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, const at::Tensor&, std::array<bool, 4>)>();
  return op.call(grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG, needed);
}

at::Tensor moe_ffn_meta(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                        const at::Tensor& down_proj, int64_t /*max_pairs*/) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj);
  return at::empty_symint(x_TD.sym_sizes(), x_TD.options());
}

TensorPair moe_ffn_forward_meta(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                                const at::Tensor& pairs_A2, const at::Tensor& gate_up_proj,
                                const at::Tensor& down_proj) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj);
  return {at::empty_symint(x_TD.sym_sizes(), x_TD.options()),
          at::empty_symint({pairs_A2.sym_size(0), gate_up_proj.sym_size(1)}, x_TD.options())};
}

TensorQuadruple moe_ffn_backward_meta(const at::Tensor& /*grad_y_TD*/, const at::Tensor& x_TD,
                                      const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                                      const at::Tensor& down_proj, const at::Tensor& /*pre_activations_AG*/,
                                      std::array<bool, 4> needed) {
  const auto like = [](bool need, const at::Tensor& input) {
    return need ? at::empty_symint(input.sym_sizes(), input.options()) : at::Tensor();
  };
  return {like(needed[0], x_TD), like(needed[1], gates_TE), like(needed[2], gate_up_proj),
          like(needed[3], down_proj)};
}

// The pairs are an argument of the forward op because their number is the size of an output: tracing then
// knows it by a name. On a CUDA device with max_pairs they stay there: what is passed is as long and never
// read.
at::Tensor chosen_pairs(const at::Tensor& gates_TE, int64_t max_pairs) {
  if (max_pairs == 0 || !gates_TE.is_cuda()) return at::nonzero(gates_TE.t());
  return at::empty({1, 2}, gates_TE.options().dtype(at::kLong)).expand({max_pairs, 2});
}

struct MoeFfnFunction : torch::autograd::Function<MoeFfnFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TD, const at::Tensor& gates_TE,
                            const at::Tensor& gate_up_proj, const at::Tensor& down_proj, int64_t max_pairs) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor pairs_A2 = chosen_pairs(gates_TE, max_pairs);
    auto [y_TD, pre_activations_AG] = call_forward(x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
    context->save_for_backward({x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG});
    return y_TD;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    std::array<bool, 4> needed{};
    for (size_t i = 0; i < needed.size(); ++i) needed[i] = context->needs_input_grad(i);
    auto [grad_x, grad_gates, grad_gate_up, grad_down] =
        call_backward(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], needed);
    return {grad_x, grad_gates, grad_gate_up, grad_down, {}};
  }
};

at::Tensor moe_ffn_autograd(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                            const at::Tensor& gate_up_proj, const at::Tensor& down_proj, int64_t max_pairs) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj);
  TORCH_CHECK(max_pairs >= 0, "moe_ffn: expected max_pairs of at least 0, got ", max_pairs);
  if (at::GradMode::is_enabled() && (x_TD.requires_grad() || gates_TE.requires_grad() ||
                                     gate_up_proj.requires_grad() || down_proj.requires_grad())) {
    return MoeFfnFunction::apply(x_TD, gates_TE, gate_up_proj, down_proj, max_pairs);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, max_pairs);
}

}  // namespace

void check_moe_ffn(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj) {
  const auto dtype = x_TD.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble,
              "moe_ffn: expected x of dtype float32, bfloat16 or float64, got ", dtype);
  TORCH_CHECK(gate_up_proj.scalar_type() == dtype && down_proj.scalar_type() == dtype,
              "moe_ffn: expected gate_up_proj and down_proj of x's dtype ", dtype, ", got ",
              gate_up_proj.scalar_type(), " and ", down_proj.scalar_type());
  const auto gates_dtype = dtype == at::kDouble ? at::kDouble : at::kFloat;
  TORCH_CHECK(gates_TE.scalar_type() == gates_dtype, "moe_ffn: expected gates of dtype ", gates_dtype,
              ", got ", gates_TE.scalar_type());
  TORCH_CHECK(x_TD.dim() == 2, "moe_ffn: expected x of shape [tokens, hidden], got ", x_TD.sym_sizes());
  const c10::SymInt hidden = x_TD.sym_size(1);
  TORCH_CHECK(gates_TE.dim() == 2 && gates_TE.sym_size(0) == x_TD.sym_size(0),
              "moe_ffn: expected gates of shape [", x_TD.sym_size(0), ", experts], got ",
              gates_TE.sym_sizes());
  const c10::SymInt experts = gates_TE.sym_size(1);
  TORCH_CHECK(down_proj.dim() == 3 && down_proj.sym_size(0) == experts && down_proj.sym_size(1) == hidden,
              "moe_ffn: expected down_proj of shape [", experts, ", ", hidden, ", ffn], got ",
              down_proj.sym_sizes());
  const c10::SymInt ffn = down_proj.sym_size(2);
  TORCH_CHECK(gate_up_proj.dim() == 3 && gate_up_proj.sym_size(0) == experts &&
                  gate_up_proj.sym_size(1) == ffn * 2 && gate_up_proj.sym_size(2) == hidden,
              "moe_ffn: expected gate_up_proj of shape [", experts, ", ", ffn * 2, ", ", hidden, "], got ",
              gate_up_proj.sym_sizes());
  TORCH_CHECK(gates_TE.device() == x_TD.device() && gate_up_proj.device() == x_TD.device() &&
                  down_proj.device() == x_TD.device(),
              "moe_ffn: expected all tensors on x's device ", x_TD.device(), ", got gates on ",
              gates_TE.device(), ", gate_up_proj on ", gate_up_proj.device(), ", down_proj on ",
              down_proj.device());
}

at::Tensor moe_ffn(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj, int64_t max_pairs) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("dtopp::moe_ffn", "")
                             .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                               const at::Tensor&, int64_t)>();
  return op.call(x_TD, gates_TE, gate_up_proj, down_proj, max_pairs);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def(
      "moe_ffn(Tensor x_TD, Tensor gates_TE, Tensor gate_up_proj, Tensor down_proj, *, int max_pairs=0) -> "
      "Tensor y_TD");
  // pairs_A2: the (expert, token) pairs with a gate, ordered by expert, then token; on a CUDA device, room
  // for as many.
  m.def(
      "moe_ffn_forward(Tensor x_TD, Tensor gates_TE, Tensor pairs_A2, Tensor gate_up_proj, Tensor down_proj) "
      "-> "
      "(Tensor y_TD, Tensor pre_activations_AG)");
  m.def(
      "moe_ffn_backward(Tensor grad_y_TD, Tensor x_TD, Tensor gates_TE, Tensor gate_up_proj, Tensor "
      "down_proj, "
      "Tensor pre_activations_AG, bool[4] needed) -> "
      "(Tensor grad_x_TD, Tensor grad_gates_TE, Tensor grad_gate_up_proj, Tensor grad_down_proj)");
}

TORCH_LIBRARY_IMPL(dtopp, Autograd, m) {
  m.impl("moe_ffn", moe_ffn_autograd);
  m.impl("moe_ffn_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("moe_ffn_backward", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(dtopp, Meta, m) {
  m.impl("moe_ffn", moe_ffn_meta);
  m.impl("moe_ffn_forward", moe_ffn_forward_meta);
  m.impl("moe_ffn_backward", moe_ffn_backward_meta);
}

}  // namespace dtopp

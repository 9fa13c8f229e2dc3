#include "dtopp/ops/moe_ffn/moe_ffn.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/core/check_tensor.h"
#include "dtopp/ops/core/gradient_accumulation_hook.h"
#include "dtopp/ops/moe_ffn/moe_ffn_cpu.h"
#include "dtopp/ops/moe_ffn/moe_ffn_kernel.h"

namespace dtopp::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using TensorPair = std::tuple<at::Tensor, at::Tensor>;
using TensorQuadruple = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

c10::SymInt rows_of(const at::Tensor& matrix) { return matrix.dim() == 2 ? matrix.sym_size(0) : 0; }

void check_layer(const char* op, const at::Tensor& x_TD, const at::Tensor& gates_TE,
                 const at::Tensor& gate_up_proj, const at::Tensor& down_proj) {
  const auto dtype = x_TD.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kDouble, op,
              ": expected x of dtype float32, bfloat16 or float64, got ", dtype);
  TORCH_CHECK(gate_up_proj.scalar_type() == dtype && down_proj.scalar_type() == dtype, op,
              ": expected gate_up_proj and down_proj of x's dtype ", dtype, ", got ",
              gate_up_proj.scalar_type(), " and ", down_proj.scalar_type());
  const auto gates_dtype = accumulator_type(x_TD);
  TORCH_CHECK(gates_TE.scalar_type() == gates_dtype, op, ": expected gates of dtype ", gates_dtype, ", got ",
              gates_TE.scalar_type());
  TORCH_CHECK(x_TD.dim() == 2, op, ": expected x of shape [tokens, hidden], got ", x_TD.sym_sizes());
  const c10::SymInt hidden = x_TD.sym_size(1);
  TORCH_CHECK(gates_TE.dim() == 2 && gates_TE.sym_size(0) == x_TD.sym_size(0), op,
              ": expected gates of shape [", x_TD.sym_size(0), ", experts], got ", gates_TE.sym_sizes());
  const c10::SymInt experts = gates_TE.sym_size(1);
  TORCH_CHECK(down_proj.dim() == 3 && down_proj.sym_size(0) == experts && down_proj.sym_size(1) == hidden, op,
              ": expected down_proj of shape [", experts, ", ", hidden, ", ffn], got ",
              down_proj.sym_sizes());
  const c10::SymInt ffn = down_proj.sym_size(2);
  TORCH_CHECK(gate_up_proj.dim() == 3 && gate_up_proj.sym_size(0) == experts &&
                  gate_up_proj.sym_size(1) == ffn * 2 && gate_up_proj.sym_size(2) == hidden,
              op, ": expected gate_up_proj of shape [", experts, ", ", ffn * 2, ", ", hidden, "], got ",
              gate_up_proj.sym_sizes());
  TORCH_CHECK(gates_TE.device() == x_TD.device() && gate_up_proj.device() == x_TD.device() &&
                  down_proj.device() == x_TD.device(),
              op, ": expected all tensors on x's device ", x_TD.device(), ", got gates on ",
              gates_TE.device(), ", gate_up_proj on ", gate_up_proj.device(), ", down_proj on ",
              down_proj.device());
}

void check_forward(const char* op, const at::Tensor& x_TD, const at::Tensor& gates_TE,
                   const at::Tensor& pairs_A2, const at::Tensor& gate_up_proj, const at::Tensor& down_proj) {
  check_layer(op, x_TD, gates_TE, gate_up_proj, down_proj);
  check_tensor(op, "pairs", pairs_A2, {at::kLong, x_TD.device()}, {rows_of(pairs_A2), 2});
}

void check_backward(const char* op, const at::Tensor& grad_y_TD, const at::Tensor& x_TD,
                    const at::Tensor& gates_TE, const at::Tensor& gate_up_proj, const at::Tensor& down_proj,
                    const at::Tensor& pre_activations_AG) {
  check_layer(op, x_TD, gates_TE, gate_up_proj, down_proj);
  const Expected like_x{x_TD.scalar_type(), x_TD.device()};
  check_tensor(op, "grad_y", grad_y_TD, like_x, x_TD.sym_sizes());
  check_tensor(op, "pre_activations", pre_activations_AG, like_x,
               {rows_of(pre_activations_AG), gate_up_proj.sym_size(1)});
}

at::Tensor moe_ffn_meta(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                        const at::Tensor& down_proj, int64_t capacity, bool /*recompute*/) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, capacity);
  return at::empty_symint(x_TD.sym_sizes(), x_TD.options());
}

TensorPair moe_ffn_forward_meta(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                                const at::Tensor& pairs_A2, const at::Tensor& gate_up_proj,
                                const at::Tensor& down_proj) {
  check_moe_ffn_forward(x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
  return {at::empty_symint(x_TD.sym_sizes(), x_TD.options()),
          at::empty_symint({pairs_A2.sym_size(0), gate_up_proj.sym_size(1)}, x_TD.options())};
}

at::Tensor moe_ffn_pre_activations_meta(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                                        const at::Tensor& pairs_A2, const at::Tensor& gate_up_proj,
                                        const at::Tensor& down_proj) {
  check_moe_ffn_pre_activations(x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
  return at::empty_symint({pairs_A2.sym_size(0), gate_up_proj.sym_size(1)}, x_TD.options());
}

at::Tensor like(bool need, const at::Tensor& input) {
  return need ? at::empty_symint(input.sym_sizes(), input.options()) : at::Tensor();
}

TensorQuadruple moe_ffn_backward_meta(const at::Tensor& grad_y_TD, const at::Tensor& x_TD,
                                      const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                                      const at::Tensor& down_proj, const at::Tensor& pre_activations_AG,
                                      std::array<bool, 4> needed) {
  check_moe_ffn_backward(grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG);
  return {like(needed[0], x_TD), like(needed[1], gates_TE), like(needed[2], gate_up_proj),
          like(needed[3], down_proj)};
}

TensorPair moe_ffn_backward_sums_meta(const at::Tensor& grad_y_TD, const at::Tensor& x_TD,
                                      const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                                      const at::Tensor& down_proj, const at::Tensor& pre_activations_AG,
                                      std::array<bool, 2> needed, const at::Tensor& gate_up_sum,
                                      const at::Tensor& down_sum, std::array<bool, 2> /*add*/) {
  check_moe_ffn_backward_sums(grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG,
                              gate_up_sum, down_sum);
  return {like(needed[0], x_TD), like(needed[1], gates_TE)};
}

// The pairs are an argument of moe_ffn_forward because their number is a dimension of an output, and
// torch.compile can then track it. A CUDA device with capacity finds the pairs itself and uses only the
// length of the argument.
at::Tensor chosen_pairs(const at::Tensor& gates_TE, int64_t capacity) {
  if (capacity > 0 && gates_TE.is_cuda())
    return at::empty({1, 2}, gates_TE.options().dtype(at::kLong)).expand({capacity, 2});
  const bool is_traced =
      gates_TE.key_set().has(c10::DispatchKey::Python);  // by torch.compile: it has no data
  return gates_TE.is_cpu() && !is_traced ? pairs_of(gates_TE) : at::nonzero(gates_TE.t());
}

constexpr const char* kRecompute = "recompute";

struct MoeFfnFunction : torch::autograd::Function<MoeFfnFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_TD, const at::Tensor& gates_TE,
                            const at::Tensor& gate_up_proj, const at::Tensor& down_proj, int64_t capacity,
                            bool recompute) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor pairs_A2 = chosen_pairs(gates_TE, capacity);
    auto [y_TD, pre_activations_AG] = call_op<"dtopp::moe_ffn_forward", decltype(moe_ffn_forward_meta)>(
        x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
    context->saved_data[kRecompute] = recompute;
    context->save_for_backward(
        {x_TD, gates_TE, gate_up_proj, down_proj, recompute ? pairs_A2 : pre_activations_AG});
    return y_TD;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor pre_activations_AG =
        context->saved_data[kRecompute].toBool()
            ? call_op<"dtopp::moe_ffn_pre_activations", decltype(moe_ffn_pre_activations_meta)>(
                  saved[0], saved[1], saved[4], saved[2], saved[3])
            : saved[4];
    std::array<bool, 4> needed{};
    for (size_t i = 0; i < needed.size(); ++i) needed[i] = context->needs_input_grad(i);
    GradientAccumulationHook *gate_up = needed[2] ? GradientAccumulationHook::of(saved[2]) : nullptr,
                             *down = needed[3] ? GradientAccumulationHook::of(saved[3]) : nullptr;
    if (gate_up != nullptr && down != nullptr) {
      const AccumulationTarget gate_up_target = gate_up->target(), down_target = down->target();
      if (gate_up_target.sum.defined() && down_target.sum.defined()) {
        auto [grad_x, grad_gates] =
            call_op<"dtopp::moe_ffn_backward_sums", decltype(moe_ffn_backward_sums_meta)>(
                grads[0], saved[0], saved[1], saved[2], saved[3], pre_activations_AG,
                std::array<bool, 2>{needed[0], needed[1]}, gate_up_target.sum, down_target.sum,
                std::array<bool, 2>{gate_up_target.add, down_target.add});
        down->complete(down_target);
        gate_up->complete(gate_up_target);
        return {grad_x, grad_gates, {}, {}, {}, {}};
      }
    }
    auto [grad_x, grad_gates, grad_gate_up, grad_down] =
        call_op<"dtopp::moe_ffn_backward", decltype(moe_ffn_backward_meta)>(
            grads[0], saved[0], saved[1], saved[2], saved[3], pre_activations_AG, needed);
    return {grad_x, grad_gates, grad_gate_up, grad_down, {}, {}};
  }
};

at::Tensor moe_ffn_autograd(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                            const at::Tensor& gate_up_proj, const at::Tensor& down_proj, int64_t capacity,
                            bool recompute) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, capacity);
  if (at::GradMode::is_enabled() && (x_TD.requires_grad() || gates_TE.requires_grad() ||
                                     gate_up_proj.requires_grad() || down_proj.requires_grad())) {
    return MoeFfnFunction::apply(x_TD, gates_TE, gate_up_proj, down_proj, capacity, recompute);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, capacity);
}

}  // namespace

void check_moe_ffn(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj, int64_t capacity) {
  check_layer("moe_ffn", x_TD, gates_TE, gate_up_proj, down_proj);
  TORCH_CHECK(capacity >= 0, "moe_ffn: expected capacity of at least 0, got ", capacity);
}

void check_moe_ffn_forward(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& pairs_A2,
                           const at::Tensor& gate_up_proj, const at::Tensor& down_proj) {
  check_forward("moe_ffn_forward", x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
}

void check_moe_ffn_pre_activations(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                                   const at::Tensor& pairs_A2, const at::Tensor& gate_up_proj,
                                   const at::Tensor& down_proj) {
  check_forward("moe_ffn_pre_activations", x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
}

void check_moe_ffn_backward(const at::Tensor& grad_y_TD, const at::Tensor& x_TD, const at::Tensor& gates_TE,
                            const at::Tensor& gate_up_proj, const at::Tensor& down_proj,
                            const at::Tensor& pre_activations_AG) {
  check_backward("moe_ffn_backward", grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG);
}

void check_moe_ffn_backward_sums(const at::Tensor& grad_y_TD, const at::Tensor& x_TD,
                                 const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                                 const at::Tensor& down_proj, const at::Tensor& pre_activations_AG,
                                 const at::Tensor& gate_up_sum, const at::Tensor& down_sum) {
  const char* op = "moe_ffn_backward_sums";
  check_backward(op, grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG);
  const Expected like_gates{gates_TE.scalar_type(), x_TD.device()};
  check_tensor(op, "gate_up_sum", gate_up_sum, like_gates, gate_up_proj.sym_sizes());
  check_tensor(op, "down_sum", down_sum, like_gates, down_proj.sym_sizes());
  TORCH_CHECK(gate_up_sum.is_contiguous() && down_sum.is_contiguous(), op, ": expected contiguous sums");
}

void check_pairs(const char* op, const at::Tensor& pairs_A2, int64_t experts, int64_t tokens) {
  const auto pair = pairs_A2.accessor<int64_t, 2>();
  bool ordered = true;
  int64_t last_expert = 0, last_token = -1;
  for (int64_t a = 0; a < pair.size(0); ++a) {
    const int64_t expert = pair[a][0], token = pair[a][1];
    ordered &= token >= 0 && token < tokens && expert < experts &&
               (expert == last_expert ? token > last_token : expert > last_expert);
    last_expert = expert;
    last_token = token;
  }
  TORCH_CHECK(ordered, op, ": expected pairs (expert, token) in ascending order, experts from 0 to ",
              experts - 1, " and tokens from 0 to ", tokens - 1, ", got a pair out of order or out of range");
}

at::Tensor moe_ffn(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                   const at::Tensor& down_proj, int64_t capacity, bool recompute) {
  return call_op<"dtopp::moe_ffn", decltype(moe_ffn_meta)>(x_TD, gates_TE, gate_up_proj, down_proj, capacity,
                                                           recompute);
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def(
      "moe_ffn(Tensor x_TD, Tensor gates_TE, Tensor gate_up_proj, Tensor down_proj, *, int capacity=0, "
      "bool recompute=False) -> Tensor y_TD");
  // pairs_A2: the (expert, token) pairs with a gate other than 0, ordered by expert, then token. A CUDA
  // device uses only its length, as the capacity.
  m.def(
      "moe_ffn_forward(Tensor x_TD, Tensor gates_TE, Tensor pairs_A2, Tensor gate_up_proj, Tensor down_proj) "
      "-> "
      "(Tensor y_TD, Tensor pre_activations_AG)");
  // The second output of moe_ffn_forward alone, to the same bits.
  m.def(
      "moe_ffn_pre_activations(Tensor x_TD, Tensor gates_TE, Tensor pairs_A2, Tensor gate_up_proj, Tensor "
      "down_proj) -> Tensor pre_activations_AG");
  m.def(
      "moe_ffn_backward(Tensor grad_y_TD, Tensor x_TD, Tensor gates_TE, Tensor gate_up_proj, Tensor "
      "down_proj, "
      "Tensor pre_activations_AG, bool[4] needed) -> "
      "(Tensor grad_x_TD, Tensor grad_gates_TE, Tensor grad_gate_up_proj, Tensor grad_down_proj)");
  // Writes the gradients of the weights to contiguous sums of the gates' type. It adds to a sum if `add` is
  // set and overwrites it otherwise (gradient_accumulation_hook.h).
  m.def(
      "moe_ffn_backward_sums(Tensor grad_y_TD, Tensor x_TD, Tensor gates_TE, Tensor gate_up_proj, Tensor "
      "down_proj, Tensor pre_activations_AG, bool[2] needed, Tensor(a!) gate_up_sum, Tensor(b!) down_sum, "
      "bool[2] add) -> (Tensor grad_x_TD, Tensor grad_gates_TE)");
}

TORCH_LIBRARY_IMPL(dtopp, Autograd, m) {
  m.impl("moe_ffn", moe_ffn_autograd);
  m.impl("moe_ffn_forward", torch::autograd::autogradNotImplementedFallback());
  m.impl("moe_ffn_pre_activations", torch::autograd::autogradNotImplementedFallback());
  m.impl("moe_ffn_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("moe_ffn_backward_sums", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(dtopp, Meta, m) {
  m.impl("moe_ffn", moe_ffn_meta);
  m.impl("moe_ffn_forward", moe_ffn_forward_meta);
  m.impl("moe_ffn_pre_activations", moe_ffn_pre_activations_meta);
  m.impl("moe_ffn_backward", moe_ffn_backward_meta);
  m.impl("moe_ffn_backward_sums", moe_ffn_backward_sums_meta);
}

}  // namespace dtopp::ops

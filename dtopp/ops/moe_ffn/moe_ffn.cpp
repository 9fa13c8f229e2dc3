#include "dtopp/ops/moe_ffn/moe_ffn.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>

#include "dtopp/ops/core/bfloat16_loops.h"
#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/core/gradient_accumulation_hook.h"
#include "dtopp/ops/gemm/dot_products.h"
#include "dtopp/ops/moe_ffn/moe_ffn_cpu.h"

namespace dtopp::ops {
namespace {

c10::SymInt rows_of(const Tensor& matrix) { return matrix.dim() == 2 ? matrix.sym_size(0) : 0; }

void check_layer(const char* op, const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
                 const Tensor& down_proj) {
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

Tensor moe_ffn_meta(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
                    const Tensor& down_proj, int64_t capacity, bool /*recompute*/) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, capacity);
  return at::empty_symint(x_TD.sym_sizes(), x_TD.options());
}

TensorPair moe_ffn_forward_meta(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& pairs_A2,
                                const Tensor& gate_up_proj, const Tensor& down_proj) {
  check_moe_ffn_forward("moe_ffn_forward", x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
  return {at::empty_symint(x_TD.sym_sizes(), x_TD.options()),
          at::empty_symint({pairs_A2.sym_size(0), gate_up_proj.sym_size(1)}, x_TD.options())};
}

Tensor moe_ffn_pre_activations_meta(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& pairs_A2,
                                    const Tensor& gate_up_proj, const Tensor& down_proj) {
  check_moe_ffn_forward("moe_ffn_pre_activations", x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
  return at::empty_symint({pairs_A2.sym_size(0), gate_up_proj.sym_size(1)}, x_TD.options());
}

Tensor like(bool need, const Tensor& input) {
  return need ? at::empty_symint(input.sym_sizes(), input.options()) : Tensor();
}

TensorQuadruple moe_ffn_backward_meta(const Tensor& grad_y_TD, const Tensor& x_TD, const Tensor& gates_TE,
                                      const Tensor& gate_up_proj, const Tensor& down_proj,
                                      const Tensor& pre_activations_AG, std::array<bool, 4> needed) {
  check_moe_ffn_backward("moe_ffn_backward", grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj,
                         pre_activations_AG);
  return {like(needed[0], x_TD), like(needed[1], gates_TE), like(needed[2], gate_up_proj),
          like(needed[3], down_proj)};
}

TensorPair moe_ffn_backward_sums_meta(const Tensor& grad_y_TD, const Tensor& x_TD, const Tensor& gates_TE,
                                      const Tensor& gate_up_proj, const Tensor& down_proj,
                                      const Tensor& pre_activations_AG, std::array<bool, 2> needed,
                                      const Tensor& gate_up_sum, const Tensor& down_sum,
                                      std::array<bool, 2> /*add*/) {
  check_moe_ffn_backward_sums(grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG,
                              gate_up_sum, down_sum);
  return {like(needed[0], x_TD), like(needed[1], gates_TE)};
}

// The pairs are an argument of moe_ffn_forward because their number is a dimension of an output, and
// torch.compile can then track it. A CUDA device with capacity finds the pairs itself and uses only the
// length of the argument.
Tensor chosen_pairs(const Tensor& gates_TE, int64_t capacity) {
  if (capacity > 0 && gates_TE.is_cuda())
    return at::empty({1, 2}, gates_TE.options().dtype(at::kLong)).expand({capacity, 2});
  const bool is_traced =
      gates_TE.key_set().has(c10::DispatchKey::Python);  // by torch.compile: it has no data
  return gates_TE.is_cpu() && !is_traced ? pairs_of(gates_TE) : at::nonzero(gates_TE.t());
}

constexpr const char* kRecompute = "recompute";

struct MoeFfnFunction : torch::autograd::Function<MoeFfnFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x_TD, const Tensor& gates_TE,
                        const Tensor& gate_up_proj, const Tensor& down_proj, int64_t capacity,
                        bool recompute) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    const Tensor pairs_A2 = chosen_pairs(gates_TE, capacity);
    auto [y_TD, pre_activations_AG] = call_op<"dtopp::moe_ffn_forward", decltype(moe_ffn_forward_meta)>(
        x_TD, gates_TE, pairs_A2, gate_up_proj, down_proj);
    context->saved_data[kRecompute] = recompute;
    context->save_for_backward(
        {x_TD, gates_TE, gate_up_proj, down_proj, recompute ? pairs_A2 : pre_activations_AG});
    return y_TD;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor pre_activations_AG =
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

Tensor moe_ffn_autograd(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
                        const Tensor& down_proj, int64_t capacity, bool recompute) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, capacity);
  if (at::GradMode::is_enabled() && (x_TD.requires_grad() || gates_TE.requires_grad() ||
                                     gate_up_proj.requires_grad() || down_proj.requires_grad())) {
    return MoeFfnFunction::apply(x_TD, gates_TE, gate_up_proj, down_proj, capacity, recompute);
  }
  const at::AutoDispatchBelowADInplaceOrView guard;
  return moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, capacity);
}

// Threads share the columns of the weights, as for few rows in moe_ffn_cpu.h: first those of the hidden
// layers of all experts, then those of the result. A token's experts are added in ascending order.

using Number = c10::BFloat16;

constexpr int64_t kDotRows = DotProducts::kMostRows, kHalfPanel = kPanelColumns / 2;
// Rows of an expert for which the products take as long as reading the weights.
constexpr int64_t kRowsPerReading = 8;
constexpr int64_t kShareWeights = int64_t{1} << 17;  // in about the time that waking a thread takes

int64_t cost(const Assignment& pairs, int64_t e) {
  return pairs.count(e) == 0 ? 0 : pairs.count(e) + kRowsPerReading;
}

// Calls body(expert, first column, last column) for the columns of all experts with pairs.
template <typename Body>
void for_dot_columns(const Assignment& pairs, int64_t experts, int64_t columns, int64_t step,
                     int64_t weights_per_column, const Body& body) {
  std::vector<int64_t> used;
  int64_t total = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (pairs.count(e) > 0) used.push_back(e);
    total += cost(pairs, e);
  }
  const int64_t weights = total / kRowsPerReading * columns * weights_per_column;
  const int64_t shares = std::clamp<int64_t>(weights / kShareWeights, 1, at::get_num_threads());
  for_even_shares<VectorTiles<float>>(
      0, std::ssize(used), columns, step, shares, [&](int64_t i) { return cost(pairs, used[i]); },
      [&](int64_t i, int64_t begin, int64_t end, int64_t /*share*/) { body(used[i], begin, end); });
}

// Calls body(first pair, number of pairs) for blocks of an expert's pairs.
template <typename Body>
void for_pair_blocks(const Assignment& pairs, int64_t e, const Body& body) {
  for (int64_t a = pairs.offset_E1[e]; a < pairs.offset_E1[e + 1]; a += kDotRows)
    body(a, std::min(kDotRows, pairs.offset_E1[e + 1] - a));
}

Tensor by_dot_products(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
                       const Tensor& down_proj) {
  const int64_t T = x_TD.size(0), D = x_TD.size(1), F = down_proj.size(2), E = gates_TE.size(1);
  const Assignment pairs = assign_in_order(gates_TE);
  const Tensor act_AF = at::empty({static_cast<int64_t>(pairs.token_A.size()), F}, x_TD.options());
  const Tensor sum_TD = at::empty(x_TD.sizes(), gates_TE.options());
  Tensor y_TD = at::empty(x_TD.sizes(), x_TD.options());
  const auto *x = x_TD.const_data_ptr<Number>(), *gate_up = gate_up_proj.const_data_ptr<Number>(),
             *down = down_proj.const_data_ptr<Number>();
  const auto* gates = gates_TE.const_data_ptr<float>();
  auto* act = act_AF.mutable_data_ptr<Number>();
  auto* sum = sum_TD.mutable_data_ptr<float>();
  auto* y = y_TD.mutable_data_ptr<Number>();
  for_dot_columns(pairs, E, F, kHalfPanel, 2 * D, [&](int64_t e, int64_t begin, int64_t end) {
    alignas(64) std::array<float, kDotRows * kPanelColumns> tile;
    std::array<const Number*, kDotRows> rows{};
    for_pair_blocks(pairs, e, [&](int64_t a, int64_t count) {
      for (int64_t m = 0; m < count; ++m) rows[m] = x + pairs.token_A[a + m] * D;
      for (int64_t f = begin; f < end; f += kHalfPanel) {
        const int64_t columns = std::min(kHalfPanel, end - f);
        const Number *gate = gate_up + (e * 2 * F + f) * D, *up = gate + F * D;
        DotProducts::multiply(rows.data(), count, gate, columns, D, tile.data(), kPanelColumns, up);
        DotProducts::multiply(rows.data(), count, up, columns, D, tile.data() + kHalfPanel, kPanelColumns,
                              gate + columns * D);
        bfloat16_loops().swiglu(tile.data(), count, columns, act + a * F + f, F, nullptr, 0, F);
      }
    });
  });
  const int64_t panels = round_up(D, kPanelColumns) / kPanelColumns;
  const int64_t weights = static_cast<int64_t>(pairs.token_A.size()) * F * kPanelColumns;
  at::parallel_for(0, panels, std::max<int64_t>(kShareWeights / std::max<int64_t>(weights, 1), 1),
                   [&](int64_t first, int64_t last) {
                     const int64_t begin = first * kPanelColumns, end = std::min(last * kPanelColumns, D);
                     for (int64_t t = 0; t < T; ++t) std::fill(sum + t * D + begin, sum + t * D + end, 0.0F);
                     alignas(64) std::array<float, kDotRows * kPanelColumns> tile;
                     std::array<const Number*, kDotRows> rows{};
                     for (int64_t e = 0; e < E; ++e) {
                       for_pair_blocks(pairs, e, [&](int64_t a, int64_t count) {
                         for (int64_t m = 0; m < count; ++m) rows[m] = act + (a + m) * F;
                         for (int64_t d = begin; d < end; d += kPanelColumns) {
                           const int64_t columns = std::min<int64_t>(kPanelColumns, end - d);
                           DotProducts::multiply(rows.data(), count, down + (e * D + d) * F, columns, F,
                                                 tile.data(), kPanelColumns);
                           bfloat16_loops().add_rows(tile.data(), count, columns,
                                                     {sum + d, D, pairs.token_A.data() + a, gates + e, E});
                         }
                       });
                     }
                     for (int64_t t = 0; t < T; ++t)
                       bfloat16_loops().convert(sum + t * D + begin, y + t * D + begin, end - begin);
                   });
  return y_TD;
}

}  // namespace

void check_moe_ffn(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
                   const Tensor& down_proj, int64_t capacity) {
  check_layer("moe_ffn", x_TD, gates_TE, gate_up_proj, down_proj);
  TORCH_CHECK(capacity >= 0, "moe_ffn: expected capacity of at least 0, got ", capacity);
}

void check_moe_ffn_forward(const char* op, const Tensor& x_TD, const Tensor& gates_TE, const Tensor& pairs_A2,
                           const Tensor& gate_up_proj, const Tensor& down_proj) {
  check_layer(op, x_TD, gates_TE, gate_up_proj, down_proj);
  check_tensor(op, "pairs", pairs_A2, {at::kLong, x_TD.device()}, {rows_of(pairs_A2), 2});
}

void check_moe_ffn_backward(const char* op, const Tensor& grad_y_TD, const Tensor& x_TD,
                            const Tensor& gates_TE, const Tensor& gate_up_proj, const Tensor& down_proj,
                            const Tensor& pre_activations_AG) {
  check_layer(op, x_TD, gates_TE, gate_up_proj, down_proj);
  const Expected like_x{x_TD.scalar_type(), x_TD.device()};
  check_tensor(op, "grad_y", grad_y_TD, like_x, x_TD.sym_sizes());
  check_tensor(op, "pre_activations", pre_activations_AG, like_x,
               {rows_of(pre_activations_AG), gate_up_proj.sym_size(1)});
}

void check_moe_ffn_backward_sums(const Tensor& grad_y_TD, const Tensor& x_TD, const Tensor& gates_TE,
                                 const Tensor& gate_up_proj, const Tensor& down_proj,
                                 const Tensor& pre_activations_AG, const Tensor& gate_up_sum,
                                 const Tensor& down_sum) {
  const char* op = "moe_ffn_backward_sums";
  check_moe_ffn_backward(op, grad_y_TD, x_TD, gates_TE, gate_up_proj, down_proj, pre_activations_AG);
  const Expected like_gates{gates_TE.scalar_type(), x_TD.device()};
  check_tensor(op, "gate_up_sum", gate_up_sum, like_gates, gate_up_proj.sym_sizes());
  check_tensor(op, "down_sum", down_sum, like_gates, down_proj.sym_sizes());
  TORCH_CHECK(gate_up_sum.is_contiguous() && down_sum.is_contiguous(), op, ": expected contiguous sums");
}

void check_pairs(const char* op, const Tensor& pairs_A2, int64_t experts, int64_t tokens) {
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

Tensor moe_ffn(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
               const Tensor& down_proj, int64_t capacity, bool recompute) {
  return call_op<"dtopp::moe_ffn", decltype(moe_ffn_meta)>(x_TD, gates_TE, gate_up_proj, down_proj, capacity,
                                                           recompute);
}

Tensor moe_ffn_by_row(const Tensor& x_TD, const Tensor& gates_TE, const Tensor& gate_up_proj,
                      const Tensor& down_proj) {
  check_moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj, /*capacity=*/0);
  if (!DotProducts::multiply_rows_of(x_TD, x_TD.size(0)))
    return moe_ffn(x_TD, gates_TE, gate_up_proj, down_proj);
  return by_dot_products(plain(x_TD), plain(gates_TE), plain(gate_up_proj), plain(down_proj));
}

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def(
      "moe_ffn(Tensor x_TD, Tensor gates_TE, Tensor gate_up_proj, Tensor down_proj, *, int capacity=0, "
      "bool recompute=False) -> Tensor y_TD");
  // pairs_A2: the (expert, token) pairs with a gate other than 0, ordered by expert, then token. A CUDA
  // device uses only its length, as the capacity.
  m.def(
      "moe_ffn_forward(Tensor x_TD, Tensor gates_TE, Tensor pairs_A2, Tensor gate_up_proj, Tensor down_proj) "
      "-> (Tensor y_TD, Tensor pre_activations_AG)");
  // The second output of moe_ffn_forward alone, to the same bits.
  m.def(
      "moe_ffn_pre_activations(Tensor x_TD, Tensor gates_TE, Tensor pairs_A2, Tensor gate_up_proj, Tensor "
      "down_proj) -> Tensor pre_activations_AG");
  m.def(
      "moe_ffn_backward(Tensor grad_y_TD, Tensor x_TD, Tensor gates_TE, Tensor gate_up_proj, Tensor "
      "down_proj, Tensor pre_activations_AG, bool[4] needed) -> (Tensor grad_x_TD, Tensor grad_gates_TE, "
      "Tensor grad_gate_up_proj, Tensor grad_down_proj)");
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

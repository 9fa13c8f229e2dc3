#include "dtopp/train/operator_costs.h"

#include <algorithm>
#include <array>
#include <utility>

#include "dtopp/ops/core/torch.h"

namespace dtopp::train {
namespace {

using Inputs = c10::ArrayRef<c10::IValue>;

double bytes(const c10::IValue& value) {
  if (value.isTensor())
    return value.toTensor().defined() ? static_cast<double>(value.toTensor().nbytes()) : 0;
  double sum = 0;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) sum += static_cast<double>(tensor.nbytes());
  }
  return sum;
}

double bytes(Inputs inputs) {
  double sum = 0;
  for (const c10::IValue& input : inputs) sum += bytes(input);
  return sum;
}

double numel(const c10::IValue& value) { return static_cast<double>(value.toTensor().numel()); }
double size(const c10::IValue& value, int64_t dim) { return static_cast<double>(value.toTensor().size(dim)); }
double width(const c10::IValue& value) { return static_cast<double>(value.toTensor().element_size()); }

// Results as large as the first operand.
OperatorCost like_first(Inputs in) { return {0, bytes(in) + bytes(in[0])}; }
OperatorCost only_reads(Inputs in) { return {0, bytes(in)}; }

// a [..., m, k] b [..., k, n]
OperatorCost product(const c10::IValue& a, const c10::IValue& b) {
  const double columns = size(b, -1), out = numel(a) / std::max(size(a, -1), 1.0) * columns;
  return {2 * numel(a) * columns, bytes(a) + bytes(b) + out * width(a)};
}
OperatorCost mm(Inputs in) { return product(in[0], in[1]); }
OperatorCost addmm(Inputs in) { return product(in[1], in[2]); }
// y_TN = x_TD W_ND^T
OperatorCost multiply_transposed(Inputs in) {
  return {2 * numel(in[0]) * size(in[1], 0), bytes(in) + size(in[0], 0) * size(in[1], 0) * width(in[0])};
}
// dW_ND = dy_TN^T x_TD
OperatorCost multiply_left_transposed(Inputs in) {
  return {2 * numel(in[0]) * size(in[1], 1), bytes(in) + size(in[0], 1) * size(in[1], 1) * width(in[0])};
}

// q, k, v, dropout, is_causal
OperatorCost attention(Inputs in) {
  return {4 * numel(in[0]) * size(in[1], -2) * (in[4].toBool() ? 0.5 : 1), like_first(in).bytes};
}
// grad, q, k, v, y, logsumexp, dropout, is_causal
OperatorCost attention_backward(Inputs in) {
  return {8 * numel(in[1]) * size(in[2], -2) * (in[7].toBool() ? 0.5 : 1),
          bytes(in) + bytes(in[1]) + bytes(in[2]) + bytes(in[3])};
}

// x, ...: reads and writes x; its backward pass, if there is one, reads two such tensors and writes one.
OperatorCost norm(Inputs in) { return {0, bytes(in[0]) * (at::GradMode::is_enabled() ? 5 : 2)}; }

// weight, indices
OperatorCost embedding(Inputs in) { return {0, 2 * numel(in[1]) * size(in[0], -1) * width(in[0])}; }
OperatorCost embedding_backward(Inputs in) { return {0, 2 * bytes(in[0])}; }

// A pair costs 2 D G FLOPs for gate and up, G = 2F, and 2 D F for down.
double expert_flops(double pairs, const c10::IValue& down_EDF) {
  return 6 * pairs * size(down_EDF, 1) * size(down_EDF, 2);
}
// x, gates, pairs, gate_up, down
OperatorCost experts(Inputs in) {
  const double pairs = size(in[2], 0);
  return {expert_flops(pairs, in[4]),
          2 * bytes(in[0]) + bytes(in[3]) + bytes(in[4]) + pairs * size(in[3], 1) * width(in[0])};
}
OperatorCost pre_activations(Inputs in) {
  const double pairs = size(in[2], 0);
  return {expert_flops(pairs, in[4]) * 2 / 3,
          bytes(in[0]) + bytes(in[3]) + pairs * size(in[3], 1) * width(in[0])};
}
// grad_y, x, gates, gate_up, down, pre_activations, needed
OperatorCost experts_backward(Inputs in) {
  return {2 * expert_flops(size(in[5], 0), in[4]),
          2 * bytes(in[0]) + bytes(in[1]) + 2 * (bytes(in[3]) + bytes(in[4])) + bytes(in[5])};
}
// The same, gate_up_sum, down_sum, add
OperatorCost experts_backward_sums(Inputs in) {
  const c10::List<bool> adds = in[9].toBoolList();
  return {2 * expert_flops(size(in[5], 0), in[4]),
          2 * bytes(in[0]) + bytes(in[1]) + bytes(in[3]) + bytes(in[4]) + bytes(in[5]) +
              bytes(in[7]) * (adds.get(0) ? 2 : 1) + bytes(in[8]) * (adds.get(1) ? 2 : 1)};
}

// x, weight, targets, z_weight, ignore_index, need_x, need_weight
OperatorCost cross_entropy(Inputs in) {
  const int need_x = in[5].toBool() ? 1 : 0, need_weight = in[6].toBool() ? 1 : 0;
  return {2 * numel(in[0]) * size(in[1], 0) * (1 + need_x + need_weight),
          bytes(in[0]) * (1 + need_x) + bytes(in[1]) * (1 + need_weight)};
}

// parameters, gradients, two moments: all but the gradients are also written.
OperatorCost adamw(Inputs in) { return {0, 2 * (bytes(in[0]) + bytes(in[2]) + bytes(in[3])) + bytes(in[1])}; }

// self, other: self is written
OperatorCost copy(Inputs in) { return {0, bytes(in[0]) + bytes(in[1])}; }
OperatorCost add_in_place(Inputs in) { return {0, 2 * bytes(in[0]) + bytes(in[1])}; }

using Row = std::pair<std::string_view, CostFunction>;

constexpr auto kCosts = std::to_array<Row>({
    {"aten::mm", mm},
    {"aten::bmm", mm},
    {"aten::addmm", addmm},
    {"aten::baddbmm", addmm},
    {"dtopp::multiply", mm},
    {"dtopp::multiply_transposed", multiply_transposed},
    {"dtopp::multiply_left_transposed", multiply_left_transposed},
    {"dtopp::attention", attention},
    {"dtopp::attention_backward", attention_backward},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
    {"aten::rms_norm", norm},
    {"aten::layer_norm", norm},
    {"dtopp::norm", norm},
    {"dtopp::norm_rotary_forward", like_first},
    {"dtopp::norm_rotary_backward", like_first},
    {"aten::embedding", embedding},
    {"aten::embedding_dense_backward", embedding_backward},
    {"dtopp::route", like_first},
    {"dtopp::route_backward", like_first},
    {"dtopp::moe_ffn_forward", experts},
    {"dtopp::moe_ffn_pre_activations", pre_activations},
    {"dtopp::moe_ffn_backward", experts_backward},
    {"dtopp::moe_ffn_backward_sums", experts_backward_sums},
    {"dtopp::linear_cross_entropy_forward", cross_entropy},
    {"dtopp::squared_norms", only_reads},
    {"aten::_fused_adamw_", adamw},
});

constexpr auto kMoves = std::to_array<Row>({
    {"aten::copy_", copy},
    {"aten::add_", add_in_place},
    {"aten::lerp_", add_in_place},
});

CostFunction find(const auto& rows, std::string_view name) {
  const auto row = std::ranges::find(rows, name, &Row::first);
  return row == rows.end() ? nullptr : row->second;
}

}  // namespace

CostFunction cost_of(std::string_view name) { return find(kCosts, name); }
CostFunction cost_of_move(std::string_view name) { return find(kMoves, name); }

}  // namespace dtopp::train

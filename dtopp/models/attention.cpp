#include "dtopp/models/attention.h"

#include "dtopp/ops/linear.h"

namespace dtopp {
namespace {

constexpr double kLayerNormEps = 1e-5;
constexpr double kRopeBase = 10000.0;

// Hugging Face's rotate-half layout, in fp32, rounded once to x's type.
at::Tensor rotate(const at::Tensor& x_THK, const RotaryTable& table) {
  const at::Tensor x = x_THK.to(table.cos_TK.scalar_type());
  const auto halves = x.chunk(2, -1);
  const at::Tensor turned = at::cat({halves[1].neg(), halves[0]}, -1);
  return (x * table.cos_TK.unsqueeze(1) + turned * table.sin_TK.unsqueeze(1)).to(x_THK.scalar_type());
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& gain_D) {
  return at::layer_norm(x, gain_D.sizes(), gain_D, {}, kLayerNormEps);
}

RotaryTable rotary_table(const at::Tensor& positions_T, int64_t head_size) {
  const at::Tensor positions = positions_T.to(at::kDouble);
  const at::Tensor exponents = at::arange(0, head_size, 2, positions.options()).neg().div(head_size);
  const at::Tensor angle = positions.unsqueeze(1) * at::pow(kRopeBase, exponents);
  const at::Tensor angle_TK = at::cat({angle, angle}, 1);
  return {angle_TK.cos().to(at::kFloat), angle_TK.sin().to(at::kFloat)};
}

Heads project_heads(const at::Tensor& x_TD, const AttentionWeights& weights, int64_t num_heads,
                    const RotaryTable& rotary) {
  const int64_t T = x_TD.size(0), head_size = x_TD.size(1) / num_heads;
  const auto heads = [&](const at::Tensor& projected) { return projected.view({T, num_heads, head_size}); };
  return {rotate(heads(layer_norm(dtopp::linear(x_TD, weights.q_DD), weights.q_norm_D)), rotary),
          rotate(heads(layer_norm(dtopp::linear(x_TD, weights.k_DD), weights.k_norm_D)), rotary),
          heads(dtopp::linear(x_TD, weights.v_DD))};
}

}  // namespace dtopp

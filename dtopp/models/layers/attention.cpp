#include "dtopp/models/layers/attention.h"

#include "dtopp/ops/attention/norm_rotary.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp {
namespace {

constexpr double kNormEps = 1e-5;
constexpr double kRopeBase = 10000.0;

}  // namespace

at::Tensor norm(const at::Tensor& x, const at::Tensor& gain_D, NormType type) {
  if (type == NormType::kRms) return at::rms_norm(x, gain_D.sizes(), gain_D, kNormEps);
  return at::layer_norm(x, gain_D.sizes(), gain_D, {}, kNormEps);
}

RotaryTable rotary_table(const at::Tensor& positions_T, int64_t head_size) {
  const at::Tensor positions = positions_T.to(at::kDouble);
  const at::Tensor exponents = at::arange(0, head_size, 2, positions.options()).neg().div(head_size);
  const at::Tensor angle = positions.unsqueeze(1) * at::pow(kRopeBase, exponents);
  const at::Tensor angle_TK = at::cat({angle, angle}, 1);
  return {angle_TK.cos().to(at::kFloat), angle_TK.sin().to(at::kFloat)};
}

QueryKeyValue project_qkv(const at::Tensor& x_TD, const AttentionWeights& weights, int64_t num_heads,
                          const RotaryTable& rotary, NormType norm) {
  const auto normed = [&](const at::Tensor& weight_DD, const at::Tensor& gain_D) {
    return norm_rotary(dtopp::linear(x_TD, weight_DD), gain_D, rotary.cos_TK, rotary.sin_TK, num_heads,
                       kNormEps, /*centred=*/norm == NormType::kLayer);
  };
  return {normed(weights.q_DD, weights.q_norm_D), normed(weights.k_DD, weights.k_norm_D),
          dtopp::linear(x_TD, weights.v_DD).view({x_TD.size(0), num_heads, x_TD.size(1) / num_heads})};
}

}  // namespace dtopp

#include "dtopp/models/layers/attention.h"

#include <array>
#include <limits>
#include <string>

#include <ATen/record_function.h>

#include "dtopp/ops/attention/attention.h"
#include "dtopp/ops/attention/document_attention.h"
#include "dtopp/ops/attention/norm_rotary.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::models {
namespace {

at::Tensor rotate(const at::Tensor& x_THK, const RotaryTable& rotary) {
  const auto halves = x_THK.chunk(2, -1);
  const at::Tensor turned_THK = at::cat({-halves[1], halves[0]}, -1);
  return (x_THK * rotary.cos_TK.unsqueeze(1) + turned_THK * rotary.sin_TK.unsqueeze(1))
      .to(x_THK.scalar_type());
}

// x W^T of each weight. by_row: as in generation, without gradients (linear_by_row).
std::vector<at::Tensor> products(const at::Tensor& x_TD, at::TensorList weights, bool by_row) {
  if (by_row) return ops::linear_by_row(x_TD, weights, x_TD.scalar_type());
  std::vector<at::Tensor> all;
  for (const at::Tensor& weight : weights) all.push_back(ops::linear(x_TD, weight));
  return all;
}

// Normalizes queries or keys, over all heads together or over each, and rotates each head.
at::Tensor normalize_and_rotate(const at::Tensor& x_TD, const at::Tensor& gain_N,
                                const config::ModelConfig& model, int64_t heads, const RotaryTable& rotary) {
  if (gain_N.defined()) {
    // A diffusion transformer always has LayerNorm here.
    const bool centred =
        model.type == config::ModelType::kDiffusionTransformer || model.norm == config::NormType::kLayer;
    return ops::norm_rotary(x_TD, gain_N, rotary.cos_TK, rotary.sin_TK, heads, model.norm_eps, centred);
  }
  const at::Tensor x_THK = x_TD.view({x_TD.size(0), heads, model.head_size()});
  return rotary.cos_TK.defined() ? rotate(x_THK, rotary) : x_THK;
}

QueryKeyValue project(const at::Tensor& x_TD, const AttentionWeights& weights,
                      const config::ModelConfig& model, const RotaryTable& rotary, bool by_row) {
  const int64_t H = model.num_heads, G = model.num_kv_heads(), K = model.head_size();
  std::vector<at::Tensor> qkv = products(x_TD, {weights.q, weights.k, weights.v}, by_row);
  if (weights.q_bias.defined()) {
    qkv[0] = qkv[0] + weights.q_bias;
    qkv[1] = qkv[1] + weights.k_bias;
    qkv[2] = qkv[2] + weights.v_bias;
  }
  return {normalize_and_rotate(qkv[0], weights.q_norm, model, H, rotary),
          normalize_and_rotate(qkv[1], weights.k_norm, model, G, rotary), qkv[2].view({x_TD.size(0), G, K})};
}

// Computes [T, H, K] for each type of mask.
struct MaskedAttention {
  const QueryKeyValue& qkv;
  size_t layer;

  at::Tensor operator()(const FullMask& mask) const { return by_sample(mask.length, false); }
  at::Tensor operator()(const CausalMask& mask) const { return by_sample(mask.length, true); }
  at::Tensor operator()(const DocumentMask& mask) const {
    const int64_t H = qkv.q_THK.size(1);
    return ops::document_attention(qkv.q_THK, repeat_heads(qkv.k_TGK, H), repeat_heads(qkv.v_TGK, H),
                                   mask.offsets, mask.longest);
  }
  at::Tensor operator()(const BiasMask& mask) const {
    const auto [q, k, v] = split(mask.bias_B1LL.size(-1));
    return at::scaled_dot_product_attention(q, k, v, mask.bias_B1LL).transpose(1, 2);
  }
  at::Tensor operator()(SegmentMask* segments) const { return segments->attend(layer, qkv); }

 private:
  // [B, H, L, K] each.
  std::array<at::Tensor, 3> split(int64_t length) const {
    const auto one = [&](const at::Tensor& x_TGK) {
      const at::Tensor x_THK = repeat_heads(x_TGK, qkv.q_THK.size(1));
      return x_THK.view({x_THK.size(0) / length, length, x_THK.size(1), x_THK.size(2)}).transpose(1, 2);
    };
    return {one(qkv.q_THK), one(qkv.k_TGK), one(qkv.v_TGK)};
  }
  at::Tensor by_sample(int64_t length, bool causal) const {
    const auto [q, k, v] = split(length);
    return ops::self_attention(q, k, v, causal).transpose(1, 2);
  }
};

}  // namespace

AttentionWeights attention_weights(const config::ModelConfig& model, const std::string& prefix,
                                   const ParameterLookup& parameter) {
  AttentionWeights weights;
  weights.q = parameter(prefix + "q_proj.weight");
  weights.k = parameter(prefix + "k_proj.weight");
  weights.v = parameter(prefix + "v_proj.weight");
  if (model.qkv_bias) {
    weights.q_bias = parameter(prefix + "q_proj.bias");
    weights.k_bias = parameter(prefix + "k_proj.bias");
    weights.v_bias = parameter(prefix + "v_proj.bias");
  }
  if (model.qk_norm != config::QkNorm::kNone) {
    weights.q_norm = parameter(prefix + "q_norm.weight");
    weights.k_norm = parameter(prefix + "k_norm.weight");
  }
  weights.o = parameter(prefix + "o_proj.weight");
  return weights;
}

RotaryTable rotary_table(const at::Tensor& positions_T, const config::ModelConfig& model) {
  const at::Tensor positions = positions_T.to(at::kDouble);
  const at::Tensor exponents =
      at::arange(0, model.head_size(), 2, positions.options()).neg().div(model.head_size());
  const at::Tensor angle = positions.unsqueeze(1) * at::pow(model.rope_base, exponents);
  const at::Tensor angle_TK = at::cat({angle, angle}, 1);
  return {angle_TK.cos().to(at::kFloat), angle_TK.sin().to(at::kFloat)};
}

BiasMask window_mask(int64_t samples, int64_t length, int64_t window, const at::Tensor& offsets,
                     const at::TensorOptions& options) {
  const at::Tensor positions = at::arange(length, options.dtype(at::kLong));
  at::Tensor first_BL = (positions - (window - 1)).unsqueeze(0);
  if (offsets.defined()) {
    // Each sample begins with a document.
    const at::Tensor tokens = at::arange(samples * length, offsets.options());
    const at::Tensor document = at::searchsorted(offsets, tokens, /*out_int32=*/false, /*right=*/true) - 1;
    const at::Tensor begin = offsets.index_select(0, document).to(at::kLong).remainder(length);
    first_BL = at::maximum(first_BL, begin.view({-1, length}));
  }
  const at::Tensor seen_BLL =
      positions.ge(first_BL.unsqueeze(-1)).logical_and(positions.le(positions.unsqueeze(-1)));
  const at::Tensor bias = at::zeros(seen_BLL.sizes(), options);
  return {bias.masked_fill(seen_BLL.logical_not(), -std::numeric_limits<double>::infinity()).unsqueeze(1)};
}

at::Tensor attention(const at::Tensor& x_TD, const AttentionWeights& weights,
                     const config::ModelConfig& model, const RotaryTable& rotary, const AttentionMask& mask,
                     size_t layer) {
  RECORD_USER_SCOPE("layer " + std::to_string(layer) + " attention");
  const bool by_row = std::holds_alternative<SegmentMask*>(mask);
  const QueryKeyValue qkv = project(x_TD, weights, model, rotary, by_row);
  const at::Tensor mixed_THK = std::visit(MaskedAttention{qkv, layer}, mask);
  return products(mixed_THK.reshape({x_TD.size(0), weights.o.size(1)}), {weights.o}, by_row)[0];
}

}  // namespace dtopp::models

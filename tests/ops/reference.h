// The ops in plain ATen, as references for the kernels. They compute in double if the caller passes doubles.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops::reference {

inline at::Tensor probabilities(const at::Tensor& logits_TE, const at::Tensor& scale,
                                const std::string& normalization) {
  if (normalization == "none") return logits_TE.softmax(-1);
  const at::Tensor centered = logits_TE - logits_TE.mean(-1, true);
  const at::Tensor s = centered / (centered.square().mean(-1, true) + 1e-6).sqrt();
  return (normalization == "dynamic" ? s * scale : s).softmax(-1);
}

// The experts of one token in the order in which they are selected, from a stable sort of all experts.
inline std::vector<int64_t> chosen_experts(const at::Tensor& prob_E, double threshold, int64_t top_k,
                                           int64_t max_experts) {
  const at::Tensor prob = prob_E.to(at::kDouble).contiguous();
  const double* p = prob.const_data_ptr<double>();
  std::vector<int64_t> order(prob.size(0));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return p[a] > p[b]; });
  size_t count = static_cast<size_t>(top_k);
  if (top_k == 0) {
    double sum = 0;
    do {
      sum += p[order[count++]];
    } while (count < order.size() && sum < threshold);
  }
  if (max_experts > 0) count = std::min(count, static_cast<size_t>(max_experts));
  order.resize(count);
  return order;
}

inline at::Tensor norm_rotary(const at::Tensor& x_TD, const at::Tensor& gain_N, const at::Tensor& cos_TK,
                              const at::Tensor& sin_TK, int64_t num_heads, double eps, bool centered) {
  const at::Tensor x_TGN = x_TD.view({x_TD.size(0), x_TD.size(1) / gain_N.size(0), gain_N.size(0)});
  const at::Tensor normal = centered ? at::layer_norm(x_TGN, gain_N.sizes(), gain_N, {}, eps)
                                     : at::rms_norm(x_TGN, gain_N.sizes(), gain_N, eps);
  const at::Tensor n_THK = normal.view({x_TD.size(0), num_heads, cos_TK.size(1)});
  const auto halves = n_THK.chunk(2, -1);
  return n_THK * cos_TK.unsqueeze(1) + at::cat({halves[1].neg(), halves[0]}, -1) * sin_TK.unsqueeze(1);
}

inline at::Tensor moe_ffn(const at::Tensor& x_TD, const at::Tensor& gates_TE, const at::Tensor& gate_up_proj,
                          const at::Tensor& down_proj) {
  at::Tensor y_TD = at::zeros_like(x_TD);
  for (int64_t e = 0; e < gates_TE.size(1); ++e) {
    const auto gate_up = at::matmul(x_TD, gate_up_proj[e].t()).chunk(2, -1);
    const at::Tensor act = at::silu(gate_up[0]) * gate_up[1];
    y_TD = y_TD + gates_TE.narrow(1, e, 1) * at::matmul(act, down_proj[e].t());
  }
  return y_TD;
}

// W_gate x and W_up x of each token-expert pair, by expert, then token: [A, 2F].
inline at::Tensor pre_activations(const at::Tensor& x_TD, const at::Tensor& gates_TE,
                                  const at::Tensor& gate_up_proj) {
  std::vector<at::Tensor> rows;
  for (int64_t e = 0; e < gates_TE.size(1); ++e) {
    const at::Tensor tokens = at::nonzero(gates_TE.select(1, e)).flatten();
    rows.push_back(at::matmul(x_TD.index_select(0, tokens), gate_up_proj[e].t()));
  }
  return at::cat(rows);
}

// The mean negative log likelihood and the mean squared logsumexp over targets >= 0.
inline std::pair<at::Tensor, at::Tensor> cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                                       const at::Tensor& targets_T) {
  const at::Tensor kept = at::nonzero(targets_T >= 0).flatten();
  const at::Tensor logits = at::matmul(x_TD.index_select(0, kept), weight_VD.t());
  const at::Tensor lse = logits.logsumexp(-1);
  const at::Tensor target = targets_T.index_select(0, kept).unsqueeze(1);
  return {(lse - logits.gather(1, target).squeeze(1)).mean(), lse.square().mean()};
}

// The largest |actual - expected| relative to the largest |expected|.
inline double error(const at::Tensor& actual, const at::Tensor& expected) {
  if (expected.numel() == 0) return 0;
  const at::Tensor reference = expected.detach().to(at::kDouble);
  const double largest = std::max(reference.abs().max().item<double>(), 1e-12);
  return (actual.detach().to(at::kDouble) - reference).abs().max().item<double>() / largest;
}

}  // namespace dtopp::ops::reference

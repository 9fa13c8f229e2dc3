// Implements multi-head self-attention for all model types.
//
//   q, k = rotate(norm(x W_q^T + b_q)), rotate(norm(x W_k^T + b_k));  v = x W_v^T + b_v
//   y = softmax(q k^T / sqrt(K) where the mask allows it) v W_o^T
//
// H = model.num_heads heads of queries share G = model.num_kv_heads() heads of keys and values, each of
// K = model.head_size() numbers. Head h of the queries uses head h / (H / G).
#pragma once

#include <string>
#include <variant>

#include "dtopp/models/layers/segments.h"
#include "dtopp/models/model.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::models {

struct AttentionWeights {
  at::Tensor q, k, v, o;              // [H K, D], [G K, D], [G K, D], [D, H K]
  at::Tensor q_bias, k_bias, v_bias;  // [H K], [G K], [G K]; undefined without model.qkv_bias
  at::Tensor q_norm, k_norm;          // [H K], [G K], or [K] per head; undefined without QK norm
};

// Looks up the parameters of ParameterList::attention. prefix: "model.layers.3.self_attn."
AttentionWeights attention_weights(const config::ModelConfig& model, const std::string& prefix,
                                   const ParameterLookup& parameter);

// cos and sin of position * base^(-2 i / K), f32. The two halves of K are equal. Undefined: no rotation.
struct RotaryTable {
  at::Tensor cos_TK, sin_TK;
};
// positions_T: int64.
RotaryTable rotary_table(const at::Tensor& positions_T, const config::ModelConfig& model);

// The tokens that each token attends to. The tokens of a batch are concatenated samples.
struct FullMask {  // all tokens of its sample
  int64_t length;  // tokens per sample
};
struct CausalMask {  // itself and the earlier tokens of its sample
  int64_t length;
};
struct DocumentMask {  // itself and the earlier tokens of its document
  at::Tensor offsets;  // document_attention.h
  int64_t longest;
};
struct BiasMask {        // its sample, where the bias is not -infinity
  at::Tensor bias_B1LL;  // added to the scores; B may be 1
};
using AttentionMask = std::variant<FullMask, CausalMask, DocumentMask, BiasMask, SegmentMask*>;

// The causal mask of `samples` x `length` tokens that also hides tokens `window` or more before a token, and
// other documents if `offsets` is defined (DocumentMask).
BiasMask window_mask(int64_t samples, int64_t length, int64_t window, const at::Tensor& offsets,
                     const at::TensorOptions& options);

// Shapes:        x_TD [T, D] -> [T, D]
// Preconditions: `rotary` has a row per token; it is defined if the model has QK norm. `layer` selects the
//                layer of the caches of a SegmentMask.
at::Tensor attention(const at::Tensor& x_TD, const AttentionWeights& weights,
                     const config::ModelConfig& model, const RotaryTable& rotary, const AttentionMask& mask,
                     size_t layer);

}  // namespace dtopp::models

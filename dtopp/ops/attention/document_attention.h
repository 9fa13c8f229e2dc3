// Self-attention of documents that lie side by side: libtorch's kernels, one call for each run of documents
// of equal length on a CPU, one for all on a CUDA device.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// As self_attention with `causal`, each token to itself and those before it in its own document. q, k, v
// [T, H, K]; the result likewise. offsets: int32 [n + 1] on their device, where each of n documents begins,
// and T, which a CUDA device takes as they are; longest: no document has more tokens. Differentiable.
at::Tensor document_attention(const at::Tensor& q_THK, const at::Tensor& k_THK, const at::Tensor& v_THK,
                              const at::Tensor& offsets, int64_t longest);

}  // namespace dtopp

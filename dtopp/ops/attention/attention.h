// Self-attention: libtorch's kernels. Where that is faster on a CPU, bf16 is computed in fp32: several times
// so without instructions that multiply bf16, up to three times with AVX512_BF16 and short sequences. On a
// CUDA device which kernel it is can be chosen.
#pragma once

#include <array>
#include <string_view>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// Softmax attention, scale 1 / sqrt(K), of each token to all, or with `causal` to itself and those before it.
// q, k, v [B, H, L, K]; the result likewise. Differentiable.
at::Tensor self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal);

// Of a CUDA device, in bf16.
enum class AttentionKernel { kCudnn, kFlash };
inline constexpr std::array<std::string_view, 2> kAttentionKernelNames = {"cuDNN", "flash"};

// For all of this process from now on libtorch takes this one where it can, then the other, then slower ones.
// To be called once attention has been computed on the device: then libtorch sets its own order.
void prefer_attention(AttentionKernel kernel);
// Which of the two comes first now.
AttentionKernel preferred_attention();

}  // namespace dtopp

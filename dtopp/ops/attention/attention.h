// Self-attention by libtorch's kernels.
//
// On CPUs bf16 is computed in fp32 if that is faster. Without bf16 instructions it is several times as fast,
// and with AVX512_BF16 and short sequences up to three times. On CUDA devices the caller can choose the
// preferred kernel.
#pragma once

#include <array>
#include <string_view>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// Softmax attention with scale 1 / sqrt(K). Each token attends to all tokens, or with `causal` to itself and
// the tokens before it. Differentiable.
//
// Shapes:        q, k, v [B, H, L, K]
// Returns:       [B, H, L, K]
// Throws:        c10::Error "self_attention: …" if the shapes differ
at::Tensor self_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal);

// Attention kernels of CUDA devices in bf16.
enum class AttentionKernel { kCudnn, kFlash };
inline constexpr std::array<std::string_view, 2> kAttentionKernelNames = {"cuDNN", "flash"};

// Sets the process-wide order of libtorch's attention kernels: this one, then the other of the two, then the
// slower ones. Call it after the first attention on the device, because that call makes libtorch set its own
// order.
void prefer_attention(AttentionKernel kernel);
// Returns the kernel that is currently first of the two.
AttentionKernel preferred_attention();

}  // namespace dtopp

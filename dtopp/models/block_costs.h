// What the transformer blocks of any model type cost: attention and feed-forward layer. See docs/plan.md.
#pragma once

#include "dtopp/config/model_config.h"
#include "dtopp/models/costs.h"

namespace dtopp {

inline constexpr uint64_t kFp32Bytes = 4;

struct BlockSizes {
  uint64_t T, D, L, H, F, E;  // T: tokens of a micro-batch
  uint64_t pairs;  // token-expert pairs of a layer and micro-batch; on a CUDA device, room for them
  uint64_t width;  // bytes of an activation
  bool dense, cuda;

  uint64_t stream() const { return checked_product({T, D, width}); }  // bytes of [T, D]
};

// InvalidValue where the kernels for CUDA devices would refuse the sizes.
BlockSizes block_sizes(const ModelConfig& model, const CostInputs& inputs);

// What autograd keeps of a block: norms, attention, feed-forward layer.
uint64_t block_activations(const BlockSizes& s);

// What the backward pass of a block holds for a moment.
uint64_t block_workspace(const BlockSizes& s);

}  // namespace dtopp

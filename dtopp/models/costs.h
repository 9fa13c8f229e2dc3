// Computes the memory of a training step beyond the parameters, and its attention FLOPs, from the
// configuration.
#pragma once

#include <initializer_list>

#include "dtopp/config/model_config.h"
#include "dtopp/config/run_config.h"

namespace dtopp::models {
struct MemoryPart {
  std::string name;  // "optimizer_moments"
  uint64_t bytes = 0;
};

struct CostInputs {
  int64_t micro_batch_size = 1;
  double active_experts = 0;  // mean per token and layer; 0: dense
  uint64_t width = 4;         // bytes per activation
  bool cuda = false;
  config::Recompute recompute = config::Recompute::kNone;
};

// Costs of one micro-batch, in bytes except FLOPs.
struct StepCosts {
  uint64_t activations = 0;       // stored by autograd: all layers, and the tensors before and after them
  uint64_t first_layer = 0;       // the part of one layer
  uint64_t recomputed = 0;        // of one layer, while its backward pass runs (training.recompute)
  MemoryPart loss;                // computation of the loss
  uint64_t released = 0;          // the part of it that is free when the layers' backward passes begin
  uint64_t workspace = 0;         // temporary tensors of one layer's backward pass
  uint64_t attention_flops = 0;   // per token, forward and backward; products without a parameter
  uint64_t recomputed_flops = 0;  // per token, not in attention_flops
};

// Products and sums of sizes. They throw InvalidValue on overflow.
uint64_t checked_product(std::initializer_list<uint64_t> factors);
uint64_t checked_sum(std::initializer_list<uint64_t> terms);
uint64_t checked_round(double value);

// Computes the cost of a transformer block of any model type: attention and feed-forward layer.
//
// In the formulas, Q = BlockSizes::queries, G = keys, A = pairs, S = shared, c = width, and a = A / T,
// rounded up.

inline constexpr uint64_t kFp32Bytes = 4;

struct BlockSizes {
  uint64_t T, D, L, H, F, E;  // T: tokens per micro-batch
  uint64_t columns;           // of the router: E and the zero experts
  uint64_t queries, keys;     // numbers per token: H K, and G K of keys or values
  uint64_t shared;            // F of all shared experts together
  uint64_t pairs;             // token-expert pairs per layer and micro-batch; on a CUDA device, the capacity
  uint64_t width;             // bytes per activation
  double active_experts;
  bool dense, cuda, shared_gate;
  config::QkNorm qk_norm;
  config::Recompute recompute;

  uint64_t stream() const { return checked_product({T, D, width}); }  // bytes of [T, D]
};

// Throws InvalidValue if the CUDA kernels do not support the sizes.
BlockSizes block_sizes(const config::ModelConfig& model, const CostInputs& inputs);

// Bytes of a block's activations: norms 4 T D c, on a CUDA device 16 T more; attention T (5 Q + G) c + 4 T H,
// without QK norm T 4 Q c + 4 T H; router 8 T E and experts 2 A F c + 4 T S c, with a shared gate T D c more,
// or a dense FFN 4 T F c. Autograd stores all of them, except
//
// - with training.recompute: moe, 16 A instead of 2 A F c;
// - with layer, 2 T D c for norms, attention and a dense FFN or shared experts as well.
//
// The backward pass of a block then computes the rest again, one part at a time.
struct BlockActivations {
  uint64_t stored, recomputed;
};
// attention_extra: further bytes of this model's norms and attention.
BlockActivations block_activations(const BlockSizes& s, uint64_t attention_extra);

// FLOPs per token of the products of all blocks that the backward pass computes again. attention_flops: see
// StepCosts.
uint64_t recomputed_flops(const BlockSizes& s, uint64_t attention_flops);

// Temporary bytes of a block's backward pass: 3 T max(D, Q) c, and
//
// - on a CPU 3 A F c + 4 T D min(ceil(log2 E), a - 1), or dense 3 T F c;
// - on a CUDA device A (D + 4 F) c + 4 T E, or dense 4 T F c.
//
// Shared experts need what a dense FFN of S needs, at another time than the experts.
uint64_t block_workspace(const BlockSizes& s);

}  // namespace dtopp::models

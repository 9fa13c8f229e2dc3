// What a model's training step takes beyond its parameters, from the configuration alone. Formulas:
// docs/plan.md.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace dtopp {

struct MemoryPart {
  std::string name;  // "optimizer_moments"
  uint64_t bytes = 0;
};

struct CostInputs {
  int64_t micro_batch_size = 1;
  double active_experts = 0;  // a token and layer, on average; 0: dense
  uint64_t width = 4;         // bytes of an activation
  bool cuda = false;
};

// Bytes, of one micro-batch.
struct StepCosts {
  uint64_t activations = 0;      // what autograd keeps of all layers and what lies before and after them
  uint64_t first_layer = 0;      // of which one layer's
  MemoryPart loss;               // what forming the loss takes
  uint64_t workspace = 0;        // what the backward pass of one layer holds for a moment
  uint64_t attention_flops = 0;  // of a token, forward and backward: what multiplies no parameter
};

// Products and sums of sizes. InvalidValue where they are more than can be counted.
uint64_t checked_product(std::initializer_list<uint64_t> factors);
uint64_t checked_sum(std::initializer_list<uint64_t> terms);
uint64_t checked_round(double value);

}  // namespace dtopp

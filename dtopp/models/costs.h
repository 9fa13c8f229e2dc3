// Computes the memory of a training step beyond the parameters, and its attention FLOPs, from the
// configuration.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

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

}  // namespace dtopp::models

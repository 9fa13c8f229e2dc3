// What a run will cost, from its configuration alone: parameters, arithmetic, memory, bytes on the wire.
// Formulas: docs/plan.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/base/available_memory.h"
#include "dtopp/config/run_config.h"
#include "dtopp/models/costs.h"

namespace dtopp {

struct Plan {
  double active_experts = 0;       // of num_experts, a token and layer, on average: the target, k, or for
                                   // top_p (which fixes no number) routing.target_experts; 0: dense
  uint64_t parameters = 0;         // every element of every parameter; a tied embedding once
  uint64_t active_parameters = 0;  // the same with active_experts of every num_experts experts

  // Training, forward and backward: 6 a matrix element a token uses (attention, router, active experts or
  // FFN, output projection; not the embedding's look-up), and 6 D S a layer for causal attention at sequence
  // length S (each token attends to S / 2 others on average).
  uint64_t flops_per_token = 0;

  uint64_t tokens_per_step = 0;  // of the global batch
  int64_t micro_batch_size = 0;
  int64_t ranks = 1;
  Precision precision =
      Precision::kFp32;  // auto resolved: bf16 on a CUDA device, else what needs more memory

  // A rank's memory at its peak. Parts: parameters (fp32 masters), optimizer_moments (two fp32, divided among
  // the ranks: ZeRO-1), gradients (fp32), compute_copies (bf16), micro_batch_gradients (of one parameter,
  // before they are added up), activations (kept for the backward pass; without what gradients and workspace
  // take over), cross_entropy, workspace (what one layer's backward holds for a moment), program.
  std::vector<MemoryPart> memory;
  uint64_t memory_bytes() const;  // the sum
  uint64_t memory_bytes(std::string_view part) const;

  // Sent by each rank in an optimiser step. A ring moves 2 (n - 1) / n of the fp32 gradients, whether as one
  // all-reduce or as a reduce-scatter and, after the sharded update, an all-gather of the parameters.
  uint64_t wire_bytes_per_step = 0;
};

// On a CUDA device (kCuda) or, all else, on a CPU. InvalidValue where sizes are too large to be counted or
// for the kernels of a CUDA device (ops/cuda_limits.h), or the global batch does not divide among the ranks.
Plan make_plan(const RunConfig& config, int64_t ranks = 1, Device device = Device::kCpu);

// The memory of a device by name: cpu (what this process can still take), a100, h100 (80 GB), h200; what
// their driver leaves for data. UsageError for another name.
uint64_t device_memory(const std::string& name);

// Throws ResourceError that names the remedy unless the plan's memory fits.
void require_memory(const Plan& plan, uint64_t available);

}  // namespace dtopp

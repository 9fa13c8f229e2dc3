// What a run will cost, from its configuration alone: parameters, arithmetic, memory, bytes on the wire.
// Formulas: docs/plan.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/device/available_memory.h"
#include "dtopp/models/costs.h"
#include "dtopp/plan/communication.h"

namespace dtopp {

struct Plan {
  double active_experts = 0;       // of num_experts, a token and layer, on average: the target, k, or for
                                   // top_p (which fixes no number) routing.target_experts; 0: dense
  uint64_t parameters = 0;         // every element of every parameter; a tied embedding once
  uint64_t active_parameters = 0;  // the same with active_experts of every num_experts experts

  // Training, forward and backward: 6 a matrix element a token uses (attention, router, active experts or
  // FFN, output projection; not the embedding's look-up; of those that a sample uses once its share), and a
  // layer's attention: 6 D S at sequence length S where it is causal (each token attends to S / 2 others on
  // average), else 12 D S.
  uint64_t flops_per_token = 0;

  uint64_t tokens_per_step = 0;  // of the global batch
  int64_t micro_batch_size = 0;
  RankLayout layout;
  Precision precision =
      Precision::kFp32;  // auto resolved: bf16 on a CUDA device, else what needs more memory

  uint64_t gradient_sums = 1;  // that a rank holds at once; with parallel.reproducible alone more than one

  // A rank's memory at its peak. Parts: parameters (fp32 masters, divided among the ranks), optimizer_moments
  // (two fp32, divided among the ranks: ZeRO-1), average (the moving one of the parameters, where the model
  // keeps it: divided like them), gradients (fp32), compute_copies (what it computes with beside its
  // masters), micro_batch_gradients (of one parameter, before they are added up), activations (kept for the
  // backward pass; without what gradients and workspace take over), exchange_buffers (rows of other ranks,
  // kept for the backward pass, and what is on its way), cross_entropy or images, workspace (what one layer's
  // backward holds for a moment), program; and where validation.tasks need more than a step, task_model.
  std::vector<MemoryPart> memory;
  uint64_t memory_bytes() const;  // the sum
  uint64_t memory_bytes(std::string_view part) const;

  Communication communication;
};

// On a CUDA device (kCuda) or, all else, on a CPU. The degree of expert parallelism is the layout's, not the
// configuration's, which may be auto. InvalidValue where sizes are too large to be counted or for the kernels
// of a CUDA device (ops/cuda/cuda_limits.h), the layout is not possible (check_layout) or leaves a rank
// without micro-batches.
Plan make_plan(const RunConfig& config, const RankLayout& layout = {}, Device device = Device::kCpu);

// Of `memory` what a plan is to leave free, as no plan knows what an allocator cannot use.
inline constexpr double kSpareMemory = 0.05;

// The largest training.micro_batch_size that divides the global batch, leaves no rank without micro-batches
// and kSpareMemory of a rank's memory free; nullopt where there is none.
std::optional<int64_t> largest_micro_batch(RunConfig config, const RankLayout& layout, Device device,
                                           uint64_t memory);

// Throws ResourceError that names the remedy unless the plan's memory fits.
void require_memory(const Plan& plan, uint64_t available);

}  // namespace dtopp

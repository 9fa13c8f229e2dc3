// Compares one GEMM of moe_ffn between its fused kernel and the path that it would replace: errors relative
// to fp32, and times.
#pragma once

#include "dtopp/ops/core/gradient_accumulation_hook.h"
#include "dtopp/ops/moe_ffn/moe_ffn_pairs_cuda.h"

namespace dtopp::ops::cuda {

struct GemmCase {
  std::vector<int64_t> rows_E;  // pairs per expert
  int64_t hidden, ffn;
};

// Cases that are seeded, so every device gets the same numbers: one row, whole tiles and one row more,
// experts without rows, sizes that are no multiple of a tile, and 4,096 rows.
const std::vector<GemmCase>& gemm_cases();
// A layer of 8 experts, which is compared as well and is the one that is timed.
const GemmCase& large_gemm_case();

// The tensors of a case, the bf16 inputs of the GEMMs. Rows beyond the pairs hold NaNs.
struct GemmInputs {
  GemmInputs(const GemmCase& sizes, const at::Device& device);
  GemmInputs in_fp32() const;

  int64_t pairs;  // fewer than the capacity by a few rows
  at::Tensor gates_TE, x_TD, dy_TD, gate_up_EGD, down_EDF;
  at::Tensor rows_AG, rows_AF;  // pre-activations or their gradient; activations
  at::Tensor dy_AD{};           // for down_gradient: gathered rows that the GEMM before it may leave
  AccumulationTarget target{};  // for a weight's gradient: its destination, if it is to have only one
};

// Returns the choice that computes `gemm` by its fused kernel or by grouped_mm, and the others as in
// `others`.
GemmChoice choice_of(ExpertGemm gemm, FusedKernelSet others, bool fused);

Pairs pairs_of(const GemmInputs& inputs, const GemmChoice& choice);

// Results of a GEMM: [A, …] over pairs or [E, …]. For a weight's gradient: the gradient, then an fp32 sum
// that it was written to and added to once more (twice the gradient).
using GemmResults = std::vector<at::Tensor>;

// `pairs` must be those of `inputs` (pairs_of).
GemmResults run_gemm(ExpertGemm gemm, const Pairs& pairs, const GemmInputs& inputs);

struct ComparedResults {
  GemmResults exact, fused, grouped;  // exact: the reference path in fp32
};
ComparedResults run_compared(ExpertGemm gemm, const FusedKernelSet& others, const GemmInputs& inputs);

// The largest |result - exact| / (|exact| + root mean square of exact). It is the largest float if a result
// is not finite, or if a fused kernel wrote rows beyond the pairs.
struct GemmErrors {
  double fused = 0, grouped = 0;
};
GemmErrors errors_of(const ComparedResults& results, int64_t pairs);

struct GemmTimes {
  double fused, grouped;  // milliseconds, medians
};
// Adds a weight's gradient to a sum, as in a training step.
GemmTimes time_gemm(ExpertGemm gemm, const FusedKernelSet& others, const GemmInputs& inputs);

}  // namespace dtopp::ops::cuda

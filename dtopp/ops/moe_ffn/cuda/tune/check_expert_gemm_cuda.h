// Compares one GEMM of moe_ffn between its fused kernel and the path that it would replace: errors relative
// to fp32, and times.
#pragma once

#include <functional>

#include "dtopp/ops/core/gradient_accumulation_hook.h"
#include "dtopp/ops/moe_ffn/moe_ffn_pairs_cuda.h"

namespace dtopp::cuda {

struct ProductCase {
  std::vector<int64_t> rows_E;  // pairs per expert
  int64_t hidden, ffn;
};

// Cases that are seeded, so every device gets the same numbers: one row, whole tiles and one row more,
// experts without rows, sizes that are no multiple of a tile, and 4,096 rows.
const std::vector<ProductCase>& product_cases();
// A layer of 8 experts, which is compared as well and is the one that is timed.
const ProductCase& large_product_case();

// The tensors of a case, the bf16 inputs of the GEMMs. Rows beyond the pairs hold NaNs.
struct ProductInputs {
  ProductInputs(const ProductCase& sizes, const at::Device& device);
  ProductInputs in_fp32() const;

  int64_t pairs;  // fewer than the capacity by a few rows
  at::Tensor gates_TE, x_TD, dy_TD, gate_up_EGD, down_EDF;
  at::Tensor rows_AG, rows_AF;  // pre-activations or their gradient; activations
  at::Tensor dy_AD{};           // for down_gradient: gathered rows that the GEMM before it may leave
  AccumulationTarget target{};  // for a weight's gradient: its destination, if it is to have only one
};

// Results of a GEMM: [A, …] over pairs or [E, …]. For a weight's gradient: the gradient, then an fp32 sum
// that it was written to and added to once more (twice the gradient). `pairs` must be those of `inputs`
// (pairs_of).
using RunProduct =
    std::function<std::vector<at::Tensor>(ExpertGemm, const Pairs& pairs, const ProductInputs& inputs)>;
std::vector<at::Tensor> run_product(ExpertGemm product, const Pairs& pairs, const ProductInputs& inputs);

Pairs pairs_of(const ProductInputs& inputs, const GemmChoice& products);

// The largest |result - exact| / (|exact| + root mean square of exact), where exact is the reference path in
// fp32. It is the largest float if a result is not finite, or if a fused kernel wrote rows beyond the pairs.
struct ProductErrors {
  double fused = 0, grouped = 0;
};
// others: the other GEMMs that use fused kernels.
ProductErrors compare_product(ExpertGemm product, const FusedKernelSet& others, const ProductInputs& inputs,
                              const RunProduct& run = run_product);

struct ProductTimes {
  double fused, grouped;  // milliseconds, medians
};
// Adds a weight's gradient to a sum, as in a training step.
ProductTimes time_product(ExpertGemm product, const FusedKernelSet& others, const ProductInputs& inputs);

}  // namespace dtopp::cuda

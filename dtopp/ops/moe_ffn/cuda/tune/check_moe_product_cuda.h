// One product of moe_ffn by own kernels beside the path it would replace: how far both are from fp32, and how
// long they take.
#pragma once

#include <functional>

#include "dtopp/ops/core/gradient_sum.h"
#include "dtopp/ops/moe_ffn/moe_ffn_pairs_cuda.h"

namespace dtopp::cuda {

struct ProductCase {
  std::vector<int64_t> rows_E;  // pairs of each expert
  int64_t hidden, ffn;
};

// Seeded, so that every device gets the same: one row, whole tiles and a row more, experts without rows,
// sizes that are no multiple of a tile, 4,096 rows.
const std::vector<ProductCase>& product_cases();
// The same, and what is timed: of a layer of 8 experts.
const ProductCase& large_product_case();

// The tensors of a case: what products read, in bf16. Rows past the pairs hold NaNs.
struct ProductInputs {
  ProductInputs(const ProductCase& sizes, const at::Device& device);
  ProductInputs in_fp32() const;

  int64_t pairs;  // a few rows fewer than there is room for
  at::Tensor gates_TE, x_TD, dy_TD, gate_up_EGD, down_EDF;
  at::Tensor rows_AG, rows_AF;  // pre-activations or their gradient; activations
  at::Tensor dy_AD{};           // of the gradient of down: as the product before it may leave them
  SumPlace place{};             // of a weight's gradient: where it goes, if to one place alone
};

// What a product gives: [A, …] of pairs or [E, …]; of a weight, its gradient and what that is added up to, in
// fp32, the second time. `pairs` are those of `inputs` (pairs_of).
using RunProduct =
    std::function<std::vector<at::Tensor>(MoeProduct, const Pairs& pairs, const ProductInputs& inputs)>;
std::vector<at::Tensor> run_product(MoeProduct product, const Pairs& pairs, const ProductInputs& inputs);

Pairs pairs_of(const ProductInputs& inputs, const Products& products);

// Of the worst result |result - exact| / (|exact| + the root of the mean square of exact), exact being the
// reference path in fp32. The largest float where a result is not finite, and where an own kernel wrote rows
// past the pairs.
struct ProductErrors {
  double own = 0, grouped = 0;
};
// `others`: the other products that own kernels form.
ProductErrors compare_product(MoeProduct product, const OwnProducts& others, const ProductInputs& inputs,
                              const RunProduct& run = run_product);

struct ProductTimes {
  double own, grouped;  // milliseconds, medians
};
// A weight's gradient is added to a sum, as in a training step.
ProductTimes time_product(MoeProduct product, const OwnProducts& others, const ProductInputs& inputs);

}  // namespace dtopp::cuda

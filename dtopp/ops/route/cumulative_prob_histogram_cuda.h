// cumulative_prob_histogram's CUDA kernel, as a plain function of device pointers.
// cumulative_prob_histogram.h describes the result.
#pragma once

#include "dtopp/ops/route/route_cuda.h"

namespace dtopp::ops::cuda {

template <typename Scalar>
struct CumulativeProbHistogram {
  using Real = Accumulator<Scalar>;
  const Scalar* logits_TE;
  const Real* scale;  // []
  int64_t tokens, experts, zero_experts, stride;
  RouteRule rule;
  int64_t* counts;  // [kCumulativeProbBins], zeros on entry
};

// Scalar: float, Bfloat16 or double.
template <typename Scalar>
void cumulative_prob_histogram(const CumulativeProbHistogram<Scalar>& of, Stream stream);

}  // namespace dtopp::ops::cuda

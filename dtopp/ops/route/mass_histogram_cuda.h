// mass_histogram's CUDA kernel, as a plain function of device pointers. mass_histogram.h describes the
// result.
#pragma once

#include "dtopp/ops/route/route_cuda.h"

namespace dtopp::cuda {

template <typename Scalar>
struct MassHistogram {
  using Real = Accumulator<Scalar>;
  const Scalar* logits_TE;
  const Real* scale;  // []
  int64_t tokens, experts, stride;
  RouteRule rule;
  int64_t* counts;  // [kMassBins], zeros on entry
};

// Scalar: float, Bfloat16 or double.
template <typename Scalar>
void mass_histogram(const MassHistogram<Scalar>& of, Stream stream);

}  // namespace dtopp::cuda

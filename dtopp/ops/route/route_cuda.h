// The CUDA kernels of route and cumulative_prob_histogram, as plain functions of device pointers. route.h has
// the equations.
#pragma once

#include "dtopp/ops/cuda/cuda_types.h"
#include "dtopp/ops/route/route_rule.h"

namespace dtopp::ops::cuda {

template <typename Scalar>
struct RouteForward {
  using Real = Accumulator<Scalar>;
  const Scalar* logits_TE;
  const Real* scale;  // []
  const double* threshold;
  int64_t tokens, experts;
  RouteRule rule;
  const Real *bias_E, *cut_E;  // kernel_bias() and cut_E; null: none
  Real* gates_TE;
  int64_t *counts_E, *histogram;  // zeros on entry
  double* sums;                   // [E + 4, route_blocks(tokens)], workspace
  Real *mean_prob_E, *entropy, *router_z;
  int64_t* mass;  // [2]
};

// A null gradient counts as zero.
template <typename Scalar>
struct RouteBackward {
  using Real = Accumulator<Scalar>;
  const Scalar* logits_TE;
  const Real* scale;
  const Real* gates_TE;
  const Real *grad_gates_TE, *grad_mean_prob_E, *grad_entropy, *grad_router_z;
  int64_t tokens, experts;
  RouteRule rule;
  Scalar* grad_logits_TE;
  double* sums;  // [route_blocks(tokens)], workspace
  Real* grad_scale;
};

template <typename Scalar>
struct CumulativeProbHistogram {
  using Real = Accumulator<Scalar>;
  const Scalar* logits_TE;
  const Real* scale;  // []
  int64_t tokens, experts, zero_experts, stride;
  RouteRule rule;
  int64_t* counts;  // [kCumulativeProbBins], zeros on entry
};

int64_t route_blocks(int64_t tokens);

// Scalar: float, Bfloat16 or double.
template <typename Scalar>
void route_forward(const RouteForward<Scalar>& route, Stream stream);

template <typename Scalar>
void route_backward(const RouteBackward<Scalar>& route, Stream stream);

template <typename Scalar>
void cumulative_prob_histogram(const CumulativeProbHistogram<Scalar>& of, Stream stream);

}  // namespace dtopp::ops::cuda

// Computes silu(gate) * up and its gradients for one number.
#pragma once

#include "dtopp/ops/cuda/cuda_kernel.h"

namespace dtopp::ops::cuda {

// One instruction each, with a relative error of at most 2^-22. Subnormal results become 0.
#if defined(__CUDACC__)
__device__ inline float fast_exp2(float x) {
  float y = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float fast_reciprocal(float x) {
  float y = 0;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// Results that are rounded to bf16 use the fast exponential and the fast quotient.
template <typename Scalar>
__device__ Accumulator<Scalar> sigmoid(Accumulator<Scalar> x) {
  if constexpr (std::is_same_v<Scalar, Bfloat16>) {
    constexpr float kLog2E = 1.44269504F;
    return fast_reciprocal(1 + fast_exp2(-kLog2E * x));
  } else if constexpr (std::is_same_v<Scalar, float>) {
    return 1 / (1 + expf(-x));
  } else {
    return 1 / (1 + exp(-x));
  }
}

template <typename Scalar>
__device__ Accumulator<Scalar> swiglu(Accumulator<Scalar> gate, Accumulator<Scalar> up) {
  return gate * sigmoid<Scalar>(gate) * up;
}

// Gradients of r A, for an activation A = silu(gate) * up and the router's gate r of the pair. `da` is the
// gradient with respect to r A.
template <typename Real>
struct SwigluGradient {
  Real d_gate, d_up, scaled, grad_gate;  // scaled = r A; grad_gate = da A, this number's part of r's gradient
};

template <typename Scalar, typename Real = Accumulator<Scalar>>
__device__ SwigluGradient<Real> swiglu_gradient(Real gate, Real up, Real da, Real r) {
  const Real sig = sigmoid<Scalar>(gate), silu = gate * sig;
  return {r * da * up * (sig + silu * (1 - sig)), r * da * silu, r * silu * up, da * silu * up};
}

}  // namespace dtopp::ops::cuda

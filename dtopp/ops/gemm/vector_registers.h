// Vectors of the registers that run_with_registers chooses, and their transposition.
#pragma once

#include <array>
#include <utility>

#include "dtopp/ops/gemm/matrix_tiles.h"

namespace dtopp::ops {

constexpr int64_t kLineBytes = 64;  // per cache line

template <typename Real, typename Regs>
struct Vectors {
  typedef Real Vector __attribute__((vector_size(Regs::kBytes)));
};

template <typename Real, typename Regs>
using VectorOf = typename Vectors<Real, Regs>::Vector;

// Loads from and stores to unaligned addresses.
template <typename Vector, typename Real>
[[gnu::always_inline]] inline Vector load_vector(const Real* from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof(Vector));
  return vector;
}

template <typename Vector, typename Real>
[[gnu::always_inline]] inline void store_vector(Real* to, const Vector& vector) {
  __builtin_memcpy(to, &vector, sizeof(Vector));
}

// One step of a transposition: in lanes whose bit kBit is set, a takes b's number kBit lanes earlier. In the
// other lanes, b takes a's old number kBit lanes later.
template <int64_t kBit, typename Vector, size_t... kLane>
[[gnu::always_inline]] inline void exchange(Vector& a, Vector& b, std::index_sequence<kLane...>) {
  constexpr int64_t kLanes = sizeof...(kLane);
  const Vector low = __builtin_shufflevector(
      a, b, ((kLane & kBit) != 0 ? static_cast<int64_t>(kLane) - kBit + kLanes : kLane)...);
  b = __builtin_shufflevector(a, b,
                              ((kLane & kBit) != 0 ? static_cast<int64_t>(kLane) + kLanes : kLane + kBit)...);
  a = low;
}

// Exchanges the off-diagonal quarters of blocks of 2 kBit lanes, from the largest block to the smallest.
template <int64_t kLanes, int64_t kBit, typename Vector>
[[gnu::always_inline]] inline void transpose(Vector* rows) {
#pragma GCC unroll 16
  for (int64_t i = 0; i < kLanes; ++i) {
    if ((i & kBit) == 0) exchange<kBit>(rows[i], rows[i | kBit], std::make_index_sequence<kLanes>{});
  }
  if constexpr (kBit > 1) transpose<kLanes, kBit / 2>(rows);
}

// Loads a vector of numbers of any type.
template <typename Vector, typename Real, typename Scalar>
[[gnu::always_inline]] inline Vector load_converted(const Scalar* from) {
  if constexpr (std::is_same_v<Scalar, Real>) return load_vector<Vector>(from);
  alignas(64) std::array<Real, sizeof(Vector) / sizeof(Real)> numbers;
  copy_converted(from, numbers.data(), std::ssize(numbers));
  return load_vector<Vector>(numbers.data());
}

// to[k * columns + n] = from[n * stride + k] for n and k below the number of lanes.
template <typename Regs, typename Scalar, typename Real>
[[gnu::always_inline]] inline void transpose_square(const Scalar* from, int64_t stride, Real* to,
                                                    int64_t columns) {
  using Vector = VectorOf<Real, Regs>;
  constexpr int64_t kLanes = Regs::template kLanes<Real>;
  Vector rows[kLanes];
#pragma GCC unroll 16
  for (int64_t n = 0; n < kLanes; ++n) rows[n] = load_converted<Vector, Real>(from + n * stride);
  transpose<kLanes, kLanes / 2>(rows);
#pragma GCC unroll 16
  for (int64_t k = 0; k < kLanes; ++k) store_vector(to + k * columns, rows[k]);
}

}  // namespace dtopp::ops

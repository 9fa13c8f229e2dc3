// Histogram bins for cumulative probabilities in [0, 1]. They are finer towards both ends, where the
// thresholds of sharp routers and of small budgets lie.
//
// 32 octaves lead towards 0 and 32 towards 1, with 64 equal bins each. Example: the octave [1/4, 1/2) has 64
// bins of width 1/256, [1/8, 1/4) has 64 bins of width 1/512. This header includes neither torch nor CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

namespace dtopp::ops {

constexpr int kCumulativeProbOctaves = 32, kCumulativeProbBinBits = 6;
constexpr int kCumulativeProbBinsOfHalf = kCumulativeProbOctaves << kCumulativeProbBinBits;
constexpr int kCumulativeProbBins = 2 * kCumulativeProbBinsOfHalf;  // 4,096

// Returns the bin of a cumulative probability c, rounded to f32 from the nearer end: the i with edges[i] <= c
// < edges[i + 1] below 1/2, and edges[i] < c <= edges[i + 1] above. Values outside belong to the outermost
// bins. Without float comparisons, so that compilers vectorize loops over it.
template <typename Real>
#if defined(__CUDACC__)
__host__ __device__
#endif
    inline int
    cumulative_prob_bin(Real cumulative_prob) {
  constexpr int kSignBits = 31, kFractionBits = 23, kExponentOfHalf = 126;
  constexpr int kFirst = (kExponentOfHalf - kCumulativeProbOctaves) << kCumulativeProbBinBits;
  const float above_half = static_cast<float>(cumulative_prob - Real(0.5)),
              lower = static_cast<float>(cumulative_prob), upper = static_cast<float>(1 - cumulative_prob);
  int32_t sign = 0, lower_bits = 0, upper_bits = 0;
  memcpy(&sign, &above_half, sizeof sign);
  memcpy(&lower_bits, &lower, sizeof lower_bits);
  memcpy(&upper_bits, &upper, sizeof upper_bits);
  const int32_t is_lower = sign >> kSignBits;  // all bits set, or none
  const int32_t bits = (is_lower & lower_bits) | (~is_lower & upper_bits);
  // The exponent and the first bits of the fraction give the bin number. Negative floats give negative
  // numbers.
  const int number = (bits >> (kFractionBits - kCumulativeProbBinBits)) - kFirst;
  const int inside = number < 0                           ? 0
                     : number < kCumulativeProbBinsOfHalf ? number
                                                          : kCumulativeProbBinsOfHalf - 1;
  return (is_lower & inside) | (~is_lower & (kCumulativeProbBins - 1 - inside));
}

// Returns the lower edges of the bins, and 1 as the upper edge of the last one. They are exact.
inline std::array<double, kCumulativeProbBins + 1> cumulative_prob_edges() {
  std::array<double, kCumulativeProbBins + 1> edges{};
  constexpr int kBinsOfOctave = 1 << kCumulativeProbBinBits;
  double octave = 1.0 / static_cast<double>(int64_t{2} << kCumulativeProbOctaves);
  for (int i = 0; i < kCumulativeProbBinsOfHalf; ++i) {
    const int offset = i % kBinsOfOctave;
    edges[i] = i == 0 ? 0.0 : octave * (1.0 + static_cast<double>(offset) / kBinsOfOctave);
    if (offset == kBinsOfOctave - 1) octave *= 2;
  }
  edges[kCumulativeProbBinsOfHalf] = 0.5;
  for (int i = 0; i < kCumulativeProbBinsOfHalf; ++i) edges[kCumulativeProbBins - i] = 1.0 - edges[i];
  return edges;
}

}  // namespace dtopp::ops

// Describes how the number of active experts of a step depends on p, the input of a threshold controller.
//
// The curve comes from a histogram of cumulative probabilities (ops/route/cumulative_prob_histogram.h).
// Within a bin, cumulative probabilities are assumed to be uniform. Example: below(p) of one controller with
// three bins
//
// bin      [0, 0.2)   [0.2, 0.6)   [0.6, 1)
// count        10         20          30        below(0.4) = 10 + 20 / 2 = 20;  threshold(20) = 0.4
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::moe {

inline constexpr double kMinThreshold = 1e-6;
inline constexpr double kMaxThreshold = 1.0 - 1e-6;

// One curve per controller (C). It uses the same operations in the same order on every device, without host
// synchronization.
class ActiveExpertCurve {
 public:
  // prob_histogram_CM: whole numbers of any type. edges: cumulative_prob_bin_edges() on the same device.
  ActiveExpertCurve(const at::Tensor& prob_histogram_CM, const at::Tensor& edges);

  // f64 [C]: the number of cumulative probabilities below p.
  at::Tensor below(const at::Tensor& p_C) const;
  // f64 [C]: the smallest p with `count` cumulative probabilities below it. It is kMinThreshold if count <=
  // 0, kMaxThreshold if the curve has no more than `count`, and always between the two.
  at::Tensor threshold(const at::Tensor& count_C) const;

 private:
  at::Tensor edges_;                         // f64 [M + 1]
  at::Tensor prob_histogram_CM_, up_to_CM_;  // f64; inclusive sum over bins
};

// f64 [kCumulativeProbBins + 1].
at::Tensor cumulative_prob_bin_edges(const at::Device& device);

}  // namespace dtopp::moe

// The plant that a threshold controller acts on, as it was in a step: how many experts tokens would choose at
// every p (ops/route/mass_histogram.h). Between the edges of a bin masses are taken to lie evenly.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

inline constexpr double kMinThreshold = 1e-6;
inline constexpr double kMaxThreshold = 1.0 - 1e-6;

// One curve for each of C controllers. The same operations in the same order on every device; the host waits
// for none.
class MassCurve {
 public:
  // masses_CM: whole numbers of any type. edges: mass_bin_edges() of the same device.
  MassCurve(const at::Tensor& masses_CM, const at::Tensor& edges);

  // f64 [C]: masses below p.
  at::Tensor below(const at::Tensor& p_C) const;
  // f64 [C]: the least p with `count` masses below it, from kMinThreshold to kMaxThreshold, which are also
  // the answers where there are none or no more masses.
  at::Tensor threshold(const at::Tensor& count_C) const;

 private:
  at::Tensor edges_;                 // f64 [M + 1]
  at::Tensor masses_CM_, up_to_CM_;  // f64; of the bins up to and with each
};

// f64 [kMassBins + 1].
at::Tensor mass_bin_edges(const at::Device& device);

}  // namespace dtopp

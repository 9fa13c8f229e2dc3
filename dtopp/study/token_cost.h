// Computes the FLOPs per token of a run from its number of active experts.
#pragma once

namespace dtopp::study {

// FLOPs per token, forward and backward, with a active experts per layer: fixed + a · per_expert.
struct TokenCost {
  double fixed = 0, per_expert = 0;
  double planned_experts = 0;  // a for a run that does not log its active experts

  double flops(double active_experts) const { return fixed + active_experts * per_expert; }
};

}  // namespace dtopp::study

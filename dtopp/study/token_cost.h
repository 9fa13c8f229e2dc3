// What a token costs a run that says how many experts it used.
#pragma once

namespace dtopp {

// FLOPs, forward and backward, with a active experts a layer: fixed + a · per_expert.
struct TokenCost {
  double fixed = 0, per_expert = 0;
  double planned_experts = 0;  // a of a run that does not say how many it used

  double flops(double active_experts) const { return fixed + active_experts * per_expert; }
};

}  // namespace dtopp

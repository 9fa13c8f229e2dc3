// How a token's experts are selected, for route's CPU and CUDA kernels. This header includes neither torch
// nor CUDA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace dtopp::ops {

// Added to the variance of a token's logits.
constexpr double kVarianceEpsilon = 1e-6;

// The unit of RouteOutput::mass. Whole numbers, so that sums do not depend on their order.
constexpr double kMassPerUnit = 1.0 / (1 << 30);

// The scores to which a bias is added when it decides which experts a token selects.
enum class BiasOn { kNothing, kLogit, kScore, kProbability };

// A selected expert's gate: of its probability, its logit, or sigmoid of its logit. The last two have a
// selection of their own (route.h).
enum class Gate { kProbability, kRelu, kSigmoid };

struct RouteRule {
  bool normalize;    // fixed or dynamic
  bool learn_scale;  // dynamic
  bool renormalize;
  bool by_threshold;  // false: a token selects the `most` likeliest experts
  int most;           // experts per token
  BiasOn bias_on;
  Gate gate;
};

// `name` is route's argument.
inline Gate gate_of(std::string_view name) {
  return name == "relu" ? Gate::kRelu : name == "sigmoid" ? Gate::kSigmoid : Gate::kProbability;
}

// `normalization`, top_k, max_experts and `renormalize` are route's arguments.
inline RouteRule route_rule(std::string_view normalization, int64_t experts, int64_t top_k,
                            int64_t max_experts, bool renormalize, BiasOn bias_on = BiasOn::kNothing,
                            Gate gate = Gate::kProbability) {
  const bool learn_scale = normalization == "dynamic";
  int64_t most = max_experts > 0 ? std::min(max_experts, experts) : experts;
  if (top_k > 0) most = std::min(most, top_k);
  const bool normalize = learn_scale || normalization == "fixed";
  return {normalize, learn_scale, renormalize, top_k == 0, static_cast<int>(most), bias_on, gate};
}

}  // namespace dtopp::ops

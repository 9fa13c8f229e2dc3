// Converts and checks the arguments of route and cumulative_prob_histogram for CUDA kernels.
#pragma once

#include <algorithm>

#include "dtopp/ops/core/torch.h"
#include "dtopp/ops/route/route_cuda.h"

namespace dtopp::cuda {

inline RouteRule route_rule(c10::string_view normalization, int64_t top_k, int64_t max_experts,
                            bool renormalize) {
  const bool learn_scale = normalization == "dynamic";
  return {learn_scale || normalization == "fixed", learn_scale, renormalize, static_cast<int>(top_k),
          static_cast<int>(std::min(max_experts, kMostExperts))};
}

inline void check_number_of_experts(const char* op, int64_t experts) {
  TORCH_CHECK(experts <= kMostExperts, op, ": expected at most ", kMostExperts,
              " experts on a CUDA device, got ", experts);
}

}  // namespace dtopp::cuda

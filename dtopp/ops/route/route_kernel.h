// What the kernels of route and mass_histogram share: argument checks and the gradients that reach route.
#pragma once

#include <optional>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// Gradients of route's differentiable outputs; none where nothing depends on them.
struct RouteGradients {
  std::optional<at::Tensor> gates_TE;
  std::optional<at::Tensor> mean_prob_E;
  std::optional<at::Tensor> entropy;
  std::optional<at::Tensor> router_z;
};

// f32, or f64 for f64 logits.
at::ScalarType route_dtype(const at::Tensor& logits_TE);

// Logits, scale and normalization.
void check_router_logits(const char* op, const at::Tensor& logits_TE, const at::Tensor& scale,
                         c10::string_view normalization);

void check_route(const at::Tensor& logits_TE, const at::Tensor& scale, const at::Tensor& threshold,
                 c10::string_view normalization, int64_t top_k, int64_t max_experts);

// The arguments of route_backward.
void check_route_backward(const at::Tensor& logits_TE, const at::Tensor& scale, const at::Tensor& gates_TE,
                          const RouteGradients& grad, c10::string_view normalization);

void check_mass_histogram(const at::Tensor& logits_TE, const at::Tensor& scale,
                          c10::string_view normalization, int64_t max_experts, int64_t stride);

}  // namespace dtopp

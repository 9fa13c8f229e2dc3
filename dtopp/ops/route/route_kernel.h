// Argument checks that the CPU and CUDA kernels of route and cumulative_prob_histogram share.
#pragma once

#include <optional>
#include <tuple>

#include "dtopp/ops/core/check_tensor.h"
#include "dtopp/ops/route/route_rule.h"

namespace dtopp::ops {

// The outputs of the operator route, in the order of RouteOutput.
using RouteTuple =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Gradients of route's differentiable outputs. A gradient is missing if nothing depends on the output.
struct RouteGradients {
  std::optional<at::Tensor> gates_TE;
  std::optional<at::Tensor> mean_prob_E;
  std::optional<at::Tensor> entropy;
  std::optional<at::Tensor> router_z;
};

// Checks logits, scale and normalization.
void check_router_logits(const char* op, const at::Tensor& logits_TE, const at::Tensor& scale,
                         c10::string_view normalization);

void check_route(const at::Tensor& logits_TE, const at::Tensor& scale, const at::Tensor& threshold,
                 c10::string_view normalization, int64_t top_k, int64_t max_experts,
                 const std::optional<at::Tensor>& bias_E, c10::string_view bias_on);

// Checks that `gate`, the cut and the arguments of the selection fit together.
void check_gate(const at::Tensor& logits_TE, int64_t top_k, bool renormalize,
                const std::optional<at::Tensor>& bias_E, c10::string_view gate,
                const std::optional<at::Tensor>& cut_E);

// The bias as the kernels use it: a factor of P (logit) or a summand (score). Undefined without a bias.
at::Tensor kernel_bias(const std::optional<at::Tensor>& bias_E, c10::string_view bias_on);
BiasOn bias_on_of(const std::optional<at::Tensor>& bias_E, c10::string_view bias_on);

// Checks the arguments of route_backward.
void check_route_backward(const at::Tensor& logits_TE, const at::Tensor& scale, const at::Tensor& gates_TE,
                          const RouteGradients& grad, c10::string_view normalization);

void check_cumulative_prob_histogram(const at::Tensor& logits_TE, const at::Tensor& scale,
                                     c10::string_view normalization, int64_t max_experts, int64_t stride,
                                     int64_t zero_experts);

}  // namespace dtopp::ops

// Selects each token's experts from its router logits and computes their gates. For one token, z its E
// logits:
//
//   s = z                            normalization none
//   s = (z - mean) / sigma                         fixed
//   s = theta (z - mean) / sigma                   dynamic; theta is learned
//   P = softmax(s)
//   S = the selected experts, the likeliest first; of two equally likely ones the lower index
//   gate_e = P_e / sum of P over S   for e in S, else 0; without renormalize: P_e
//
// mean and sigma are over the token's logits: sigma = sqrt(variance + 1e-6), and the variance has divisor E.
// Top-k (top_k > 0): S is the top_k likeliest experts. Top-p (top_k = 0): experts join S until their P add up
// to the threshold; the likeliest always joins. max_experts > 0 limits the size of S. The gradient treats S
// as constant.
//
// With a bias b per expert, S keeps its size but holds the experts with the largest s + b (bias_on: logit, as
// P exp(b), so b = 0 changes no bit), exp(s) + b (bias_on: score) or P + b (probability). The gates do not
// contain b. `mass` shows what the bias costs.
//
// Other gates do not depend on a token's other experts, and a token may have none:
//
//   relu      S = the e with z_e > 0            gate_e = z_e              Q_e = mean of gate_e
//   sigmoid   S = the e with z_e >= cut_e       gate_e = sigmoid(z_e)     NaN as first cut: the top_k
//   likeliest
//
// Source:        paper, Eqs. 2–4 and 7; ReMoE (arXiv 2412.14711); Expert Threshold Routing (arXiv 2603.11535)
#pragma once

#include <optional>
#include <tuple>

#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/route/route_rule.h"

namespace dtopp::ops {
// "f32" below is f64 for f64 logits. Means are over tokens, and 0 if there are no tokens.
struct RouteOutput {
  Tensor gates_TE;             // f32
  Tensor tokens_per_expert_E;  // int64 [E]: tokens per expert
  Tensor active_histogram;     // int64 [E + 1]: number of tokens with n experts
  Tensor mean_prob_E;          // f32: mean of P (relu: of the gates), the Q of the load-balance loss
  Tensor entropy;              // f32 []: mean of -sum P log P
  Tensor router_z;             // f32 []: mean of logsumexp(z)^2, of the raw logits
  // int64 [2]: sums over tokens of P over S, and of as many largest P, each token's rounded to a multiple of
  // 2^-30. Zeros without a threshold and a bias. Undefined if the experts were not selected by route().
  Tensor mass{};
  // Not an output of the op: int64, counts that the router's update needs (moe/router.h); may be undefined.
  Tensor statistics{};
  Tensor zero_gate_T1{};  // likewise: f32, the sum of a token's gates of zero experts (model.zero_experts)
  Tensor logit_sums{};    // likewise: int64, sums over tokens of the logits (moe/expert_normalization.h)
  Tensor sequence_balance{};  // likewise: f32 [], a router's loss (loss.sequence_balance)
};

// The host does not wait for a CUDA device. Differentiable: gates, mean_prob, entropy and router_z, with
// respect to logits and scale. Logits that are not finite are no error: the token is assigned to the first
// experts by index, with NaN gates.
//
// Shapes:        logits_TE f32|bf16|f64 [T, E]; scale f32 [], theta, used if dynamic; threshold f64 [], used
//                if top_k is 0; bias_E and cut_E f32 (f64) [E]
// Throws:        c10::Error "route: …" if shapes, types, devices or values do not fit, or if E exceeds 2,048
//                on a CUDA device (cuda_types.h). A CPU also rejects a NaN threshold; a CUDA device then
//                selects one expert.
RouteOutput route(const Tensor& logits_TE, const Tensor& scale, const Tensor& threshold,
                  std::string_view normalization, int64_t top_k, int64_t max_experts, bool renormalize,
                  const std::optional<Tensor>& bias_E = std::nullopt, std::string_view bias_on = "logit",
                  std::string_view gate = "probability", const std::optional<Tensor>& cut_E = std::nullopt);

// Like route, with S given by routing_map_TE, any number of experts per token: for example to replay recorded
// routing. The logits do not change S. A token's gates are NaN if its P over S add up to 0.
//
// Shapes:        routing_map_TE bool [T, E]; logits_TE and scale as in route
// Throws:        c10::Error "route_selected: …" if the selection does not fit, else "route: …"
RouteOutput route_selected(const Tensor& logits_TE, const Tensor& scale, const Tensor& routing_map_TE,
                           std::string_view normalization, bool renormalize);

// Sets the counts of `out` to those of a selection, bool [T, E].
void set_counts(const Tensor& routing_map_TE, RouteOutput& out);

// Counts the cumulative probabilities c_j before each token's j-th likeliest expert, j >= 2, over tokens. The
// histogram gives the number of active experts at any threshold.
//
// A threshold p selects the j-th likeliest expert exactly if c_j < p. The mean number of active
// experts per token at p is therefore
//
//   a(p) = 1 + (number of c_j < p) / tokens
//
// With zero experts, which are the last columns, only the others count, and so does a token's likeliest
// expert (c_1 = 0): a(p) = (number of c_j < p) / tokens.
//
// Example: one token with P = 0.5, 0.3, 0.2 has c_2 = 0.5 and c_3 = 0.8. At p = 0.7 only c_2 < p, so a = 2.
//
// Counts every `stride`-th token from the first on, and at most max_experts experts per token (0: all). It
// skips tokens whose logits are not finite: they have one expert. Not differentiable.
//
// Shapes:        logits_TE, scale and normalization as in route
// Returns:       int64 [kCumulativeProbBins] (cumulative_prob_bins.h)
// Throws:        c10::Error "cumulative_prob_histogram: …" in the same cases as route
Tensor cumulative_prob_histogram(const Tensor& logits_TE, const Tensor& scale, std::string_view normalization,
                                 int64_t max_experts, int64_t stride, int64_t zero_experts = 0);

// Bins of 1/32 over [-16, 16). The outermost two also count all logits beyond.
constexpr int64_t kLogitBins = 1024;
constexpr double kLowestLogit = -16, kLogitBinsPerUnit = 32;

// Counts the logits of each expert in bins. ranked_logit reads ranks from the counts. Counts of
// micro-batches and ranks add up, so a rank does not depend on how a step is divided.
//
// Counts every `stride`-th token from the first on. NaN counts as the smallest logit. Not differentiable.
//
// Shapes:        logits_TE f32|f64 [T, E] -> int64 [E, kLogitBins]
// Throws:        c10::Error "logit_histogram: …" if type, shape or stride do not fit
Tensor logit_histogram(const Tensor& logits_TE, int64_t stride);

// The rank-th largest logit, linear inside its bin. Counts are whole numbers of any type [.., kLogitBins],
// the result is f64 [..].
Tensor ranked_logit(const Tensor& counts, int64_t rank);

// For the CPU and CUDA kernels of route and cumulative_prob_histogram.

// The outputs of the operator route, in the order of RouteOutput.
using RouteTuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

using OptionalTensor = std::optional<Tensor>;

void check_router_logits(const char* op, const Tensor& logits_TE, const Tensor& scale,
                         c10::string_view normalization);

void check_route(const Tensor& logits_TE, const Tensor& scale, const Tensor& threshold,
                 c10::string_view normalization, int64_t top_k, int64_t max_experts, bool renormalize,
                 const OptionalTensor& bias_E, c10::string_view bias_on, c10::string_view gate,
                 const OptionalTensor& cut_E);

// The bias as the kernels use it: a factor of P (logit) or a summand (score). Undefined without a bias.
Tensor kernel_bias(const OptionalTensor& bias_E, c10::string_view bias_on);
BiasOn bias_on_of(const OptionalTensor& bias_E, c10::string_view bias_on);

// Checks the arguments of route_backward. A gradient is missing if nothing depends on the output.
void check_route_backward(const Tensor& logits_TE, const Tensor& scale, const Tensor& gates_TE,
                          const OptionalTensor& grad_gates_TE, const OptionalTensor& grad_mean_prob_E,
                          const OptionalTensor& grad_entropy, const OptionalTensor& grad_router_z,
                          c10::string_view normalization);

void check_cumulative_prob_histogram(const Tensor& logits_TE, const Tensor& scale,
                                     c10::string_view normalization, int64_t max_experts, int64_t stride,
                                     int64_t zero_experts);

}  // namespace dtopp::ops

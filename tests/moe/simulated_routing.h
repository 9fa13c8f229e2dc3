// Simulates routers without a model, and the counts of an optimizer step, for tests of controllers.
#pragma once

#include <algorithm>
#include <vector>

#include "dtopp/moe/dtop_p.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::moe {

// Tokens with Gaussian logits. theta 1 is the initial state of the paper's routers; larger values are
// sharper.
struct Simulated {
  int64_t tokens, experts;
  double theta = 1;
  int64_t max_experts = 0, stride = 1;
};

struct SimulatedLayer {
  Simulated of;
  std::vector<double> cumulative_probs;  // of all tokens, sorted, in double precision
  at::Tensor prob_histogram_M;           // computed by the op
};

inline SimulatedLayer simulated_layer(const Simulated& of, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const at::Tensor z_TE = at::randn({of.tokens, of.experts}, generator, at::TensorOptions(at::kFloat));
  const at::Tensor scale = at::scalar_tensor(of.theta, at::kFloat);
  const at::Tensor exact_TE = z_TE.to(at::kDouble);
  const at::Tensor s_TE = of.theta * (exact_TE - exact_TE.mean({1}, true)) /
                          (exact_TE.var({1}, /*unbiased=*/false, true) + 1e-6).sqrt();
  const auto [p_TE, index_TE] = s_TE.softmax(1).sort(/*dim=*/1, /*descending=*/true);
  const int64_t limit = of.max_experts > 0 ? of.max_experts : of.experts;
  const at::Tensor before = p_TE.cumsum(1).narrow(1, 0, limit - 1).contiguous();
  SimulatedLayer layer{of,
                       {before.const_data_ptr<double>(), before.const_data_ptr<double>() + before.numel()},
                       ops::cumulative_prob_histogram(z_TE, scale, "dynamic", of.max_experts, of.stride)};
  std::sort(layer.cumulative_probs.begin(), layer.cumulative_probs.end());
  return layer;
}

// The counts of one optimizer step on these tokens.
inline RoutedStep simulated_step(const std::vector<SimulatedLayer>& layers,
                                 const ThresholdController& controller) {
  const Simulated& of = layers.at(0).of;
  std::vector<int64_t> selected;
  std::vector<at::Tensor> histograms;
  for (const SimulatedLayer& layer : layers) {
    const double p = controller.threshold(static_cast<int64_t>(selected.size())).item<double>();
    const auto below = std::lower_bound(layer.cumulative_probs.begin(), layer.cumulative_probs.end(), p) -
                       layer.cumulative_probs.begin();
    selected.push_back(of.tokens + below);
    histograms.push_back(layer.prob_histogram_M);
  }
  const at::Tensor prob_histogram_LM = at::stack(histograms);
  return {at::tensor(selected, at::kLong), of.tokens,
          controller.per_layer() ? prob_histogram_LM : prob_histogram_LM.sum(0, /*keepdim=*/true), of.stride};
}

}  // namespace dtopp::moe

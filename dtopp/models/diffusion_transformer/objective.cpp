#include "dtopp/models/diffusion_transformer/objective.h"

#include <algorithm>
#include <cmath>

namespace dtopp::models {
namespace {

constexpr double kFirstBeta = 1e-4, kLastBeta = 0.02;

at::Tensor of_each_image(const at::Tensor& value_B) { return value_B.to(at::kFloat).view({-1, 1, 1, 1}); }

// The normal quantile of a probability, by bisection within ±9.
double normal_quantile(double probability) {
  double low = -9, high = 9;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    const bool below = 0.5 * std::erfc(-middle / std::sqrt(2.0)) < probability;
    (below ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

}  // namespace

at::Tensor ddpm_alpha_products(const at::Device& device) {
  const at::Tensor beta =
      at::linspace(kFirstBeta, kLastBeta, kDdpmSteps, at::device(device).dtype(at::kDouble));
  return (1 - beta).cumprod(0);
}

Noised add_noise(config::Objective objective, const at::Tensor& x0_BCHW, const at::Tensor& noise_BCHW,
                 const at::Tensor& t_B) {
  if (objective == config::Objective::kFlow) {
    const at::Tensor t = of_each_image(t_B);
    return {(1 - t) * x0_BCHW + t * noise_BCHW, noise_BCHW - x0_BCHW};
  }
  const at::Tensor step_B = (t_B * static_cast<double>(kDdpmSteps)).round().to(at::kLong);
  const at::Tensor alpha_B = ddpm_alpha_products(t_B.device()).index_select(0, step_B);
  return {of_each_image(alpha_B.sqrt()) * x0_BCHW + of_each_image((1 - alpha_B).sqrt()) * noise_BCHW,
          noise_BCHW};
}

float timestep_at(double share, const config::DiffusionConfig& config) {
  double t = share;
  if (config.timesteps == config::Timesteps::kLogitNormal)
    t = 1.0 / (1.0 + std::exp(-normal_quantile(share)));
  if (config.objective == config::Objective::kFlow) return static_cast<float>(t);
  const double step = std::floor(t * static_cast<double>(kDdpmSteps));
  return static_cast<float>(std::min(step, static_cast<double>(kDdpmSteps - 1)) / kDdpmSteps);
}

}  // namespace dtopp::models

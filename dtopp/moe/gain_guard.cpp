#include "dtopp/moe/gain_guard.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <vector>

#include "dtopp/base/random.h"
#include "dtopp/moe/threshold_controller.h"

namespace dtopp {
namespace {

constexpr int64_t kTokens = 2048;
constexpr double kSlopeStep = 0.01;  // half width of the central difference da/dp

// Cumulative probabilities of the experts in descending order, one row a token.
std::vector<std::vector<double>> cumulative_probabilities(int64_t num_experts) {
  const RandomStream stream(0, "gain guard");
  const auto E = static_cast<size_t>(num_experts);
  std::vector<std::vector<double>> rows(kTokens, std::vector<double>(E));
  uint64_t draw = 0;
  for (auto& row : rows) {
    double mean = 0;
    for (double& z : row) {
      const double radius = std::sqrt(-2.0 * std::log(1.0 - stream.uniform(2 * draw)));
      z = radius * std::cos(2.0 * std::numbers::pi * stream.uniform(2 * draw + 1));
      ++draw;
      mean += z / static_cast<double>(E);
    }
    double variance = 0;
    for (const double z : row) variance += (z - mean) * (z - mean) / static_cast<double>(E);
    double sum = 0;
    for (double& z : row) sum += (z = std::exp((z - mean) / std::sqrt(variance + 1e-6)));
    std::sort(row.begin(), row.end(), std::greater<>());
    double before = 0;
    for (double& z : row) z = (before += z / sum);
  }
  return rows;
}

struct Count {
  double mean, std;
};

Count active_experts(const std::vector<std::vector<double>>& cumulative, double p) {
  double sum = 0;
  double squares = 0;
  for (const auto& row : cumulative) {
    // Expert j is chosen while the sum before it is below p: one more than the prefixes below p.
    const auto below = std::lower_bound(row.begin(), row.end(), p) - row.begin();
    const auto count = static_cast<double>(std::min<int64_t>(below + 1, static_cast<int64_t>(row.size())));
    sum += count;
    squares += count * count;
  }
  const double mean = sum / kTokens;
  return {mean, std::sqrt(std::max(0.0, squares / kTokens - mean * mean))};
}

}  // namespace

PlantEstimate estimate_plant(int64_t num_experts, double target) {
  const auto cumulative = cumulative_probabilities(num_experts);
  double low = 0;
  double high = 1;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (active_experts(cumulative, middle).mean < target ? low : high) = middle;
  }
  const double p = std::clamp((low + high) / 2, kSlopeStep, 1 - kSlopeStep);
  const double rise =
      active_experts(cumulative, p + kSlopeStep).mean - active_experts(cumulative, p - kSlopeStep).mean;
  return {(low + high) / 2, active_experts(cumulative, p).std,
          rise / (2 * kSlopeStep) / static_cast<double>(num_experts)};
}

std::optional<std::string> gain_warning(const RoutingConfig& config, int64_t num_experts) {
  if (config.method != RoutingMethod::kDTopP || num_experts < 2) return std::nullopt;
  if (config.controller == Controller::kSolve) return std::nullopt;  // has no gains
  double gain = 0;
  for (const double target : config.target_experts)
    gain = std::max(gain, estimate_plant(num_experts, target).gain);
  const double kp = config.kp.value.value_or(kAutoKp / gain), ki = config.ki.value.value_or(kAutoKi / gain);
  const double loop = gain * (2 * kp + ki);
  char text[320];
  std::string suggestion;
  if (gain > 0) {
    // A quarter of the bound.
    std::snprintf(text, sizeof text, "; stable gains here: kp = ki = %.2g", 0.5 / (3 * gain));
    suggestion = text;
  }
  if (ki == 0)
    return "routing.ki is 0: without the integral term the mean number of active experts will not reach its "
           "target" +
           suggestion;
  // With a target of 1, p changes no count and nothing oscillates.
  if (gain == 0 || (loop < 2 && kp >= 0 && ki > 0)) return std::nullopt;
  std::snprintf(
      text, sizeof text,
      "routing.kp = %g, routing.ki = %g make the controller unstable (loop gain %.2f, stable below 2): the "
      "number of active experts will oscillate",
      kp, ki, loop);
  return text + suggestion;
}

}  // namespace dtopp

#include "dtopp/parameters/parameters.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

namespace dtopp::parameters {
namespace {

ParameterSpec matrix(const std::string& name, int64_t rows, int64_t columns) {
  return {name, {rows, columns}, {Distribution::kTruncatedNormal, 0.02}, ParameterRole::kMatrix};
}

TEST(Initialization, is_a_truncated_normal) {
  at::Tensor tensor = at::empty({1000, 1000}, at::kFloat);
  initialize(matrix("w", 1000, 1000), 1, tensor);
  const at::Tensor values = tensor.to(at::kDouble).div(0.02);
  EXPECT_LE(values.abs().max().item<double>(), 3.0 + 1e-6);
  EXPECT_GT(values.abs().max().item<double>(), 2.99);
  EXPECT_NEAR(values.mean().item<double>(), 0, 4e-3);
  // The variance of a normal distribution cut at ±3: 1 - 6 phi(3) / (2 Phi(3) - 1).
  const double phi = std::exp(-4.5) / std::sqrt(2 * std::numbers::pi);
  EXPECT_NEAR(values.var().item<double>(), 1 - 6 * phi / std::erf(3 / std::sqrt(2.0)), 6e-3);
  // The share within one standard deviation.
  EXPECT_NEAR((values.abs() < 1).to(at::kDouble).mean().item<double>(),
              std::erf(1 / std::sqrt(2.0)) / std::erf(3 / std::sqrt(2.0)), 2e-3);
}

TEST(Initialization, depends_on_seed_and_name_alone) {
  at::Tensor a = at::empty({64, 64}, at::kFloat);
  at::Tensor b = at::empty({64, 64}, at::kFloat);
  initialize(matrix("w", 64, 64), 1, a);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  initialize(matrix("w", 64, 64), 1, b);
  at::set_num_threads(threads);
  EXPECT_TRUE(a.equal(b));
  initialize(matrix("w", 64, 64), 2, b);
  EXPECT_FALSE(a.equal(b));
  initialize(matrix("v", 64, 64), 1, b);
  EXPECT_FALSE(a.equal(b));
}

TEST(Initialization, may_be_one_or_zero) {
  at::Tensor tensor = at::full({16}, 7.0, at::kFloat);
  initialize({"norm", {16}, {Distribution::kOne}, ParameterRole::kGain}, 1, tensor);
  EXPECT_TRUE(tensor.equal(at::ones({16})));
  initialize({"modulation", {16}, {Distribution::kZero}, ParameterRole::kMatrix}, 1, tensor);
  EXPECT_TRUE(tensor.equal(at::zeros({16})));
}

}  // namespace

}  // namespace dtopp::parameters

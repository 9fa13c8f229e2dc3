#include "dtopp/ops/core/simd.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace dtopp::ops::simd_test {
namespace {

std::vector<float> exponentials(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  run_widest([&] {
#pragma omp simd
    for (size_t i = 0; i < x.size(); ++i) y[i] = fast_exp(x[i]);
  });
  return y;
}

TEST(FastExp, lies_within_2_ulp) {
  std::vector<float> x;
  for (float value = -87.3F; value <= 88; value += 1.7e-3F) x.push_back(value);
  const std::vector<float> y = exponentials(x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double wanted = std::exp(static_cast<double>(x[i]));
    const auto nearest = static_cast<float>(wanted);
    const double ulp = std::nextafter(nearest, std::numeric_limits<float>::infinity()) - nearest;
    ASSERT_LE(std::abs(y[i] - wanted), 2 * ulp) << x[i];
  }
}

TEST(FastExp, has_ends) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kMax = std::numeric_limits<float>::max();
  const std::vector<float> low = exponentials({-87.4F, -87.7F, -88.0F, -89.0F, -1e6F, -kMax, -kInfinity});
  for (const float value : low) EXPECT_TRUE(value >= 0 && value < 1.2e-38F) << value;
  for (size_t i = 2; i < low.size(); ++i) EXPECT_EQ(low[i], 0);
  const float top = exponentials({88.0F}).front();
  EXPECT_FLOAT_EQ(top, static_cast<float>(std::exp(88.0)));
  for (const float value : exponentials({88.1F, 1e6F, kMax, kInfinity})) EXPECT_EQ(value, top);
  for (const float value : exponentials({kNan, -kNan})) EXPECT_TRUE(std::isnan(value));
  for (const float value : exponentials({0.0F, -0.0F, std::numeric_limits<float>::denorm_min()}))
    EXPECT_EQ(value, 1);
}

}  // namespace
}  // namespace dtopp::ops::simd_test

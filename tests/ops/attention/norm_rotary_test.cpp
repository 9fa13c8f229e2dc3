#include "dtopp/ops/attention/norm_rotary.h"

#include <gtest/gtest.h>

#include "tests/ops/reference.h"
#include "tests/ops/same_gradients.h"

namespace dtopp::ops::norm_rotary_test {
namespace {

struct Case {
  int64_t tokens, heads, width;
};

constexpr Case kCases[] = {{0, 1, 2}, {1, 2, 8}, {5, 3, 6}, {130, 2, 40}, {300, 4, 64}};
constexpr double kEps = 1e-5;

// The reference: torch's operations in double.
void expect_rotated(const Case& test, at::ScalarType dtype, bool centered, int64_t size, double bound) {
  SCOPED_TRACE(testing::Message() << test.tokens << " tokens, " << test.heads << " heads of " << test.width
                                  << (centered ? ", centered" : "") << ", a gain of " << size);
  const int64_t hidden = test.heads * test.width;
  const at::Tensor x = (at::randn({test.tokens, hidden}) * 3 + 1).to(dtype).requires_grad_();
  const at::Tensor gain = (at::randn({size}) + 1).to(dtype).requires_grad_();
  const at::Tensor angle = at::randn({test.tokens, test.width / 2}).repeat({1, 2}) * 5;
  const at::Tensor cos = angle.cos(), sin = angle.sin();
  const at::Tensor exact_x = x.detach().to(at::kDouble).requires_grad_();
  const at::Tensor exact_gain = gain.detach().to(at::kDouble).requires_grad_();
  const at::Tensor y = norm_rotary(x, gain, cos, sin, test.heads, kEps, centered);
  const at::Tensor expected = reference::norm_rotary(exact_x, exact_gain, cos.to(at::kDouble),
                                                     sin.to(at::kDouble), test.heads, kEps, centered);
  expect_same_gradients(y, expected, {x, gain}, {exact_x, exact_gain}, bound);
}

TEST(NormRotary, and_its_gradients_match_double_precision) {
  at::manual_seed(2);
  for (const Case& test : kCases) {
    for (const bool centered : {true, false}) {
      for (const int64_t size : {test.heads * test.width, test.width}) {
        expect_rotated(test, at::kFloat, centered, size, 1e-5);
        expect_rotated(test, at::kBFloat16, centered, size, 1.0 / 256);
      }
    }
  }
}

TEST(NormRotary, turns_a_head_by_its_angle) {
  // Two numbers are normalized to 1 and -1 (up to eps) and rotated by a right angle.
  const at::Tensor x = at::tensor({5.0F, 1.0F}).view({1, 2});
  const at::Tensor y = norm_rotary(x, at::ones({2}), at::zeros({1, 2}), at::ones({1, 2}), 1, kEps);
  EXPECT_NEAR(y[0][0][0].item<float>(), 1, 1e-5);
  EXPECT_NEAR(y[0][0][1].item<float>(), 1, 1e-5);
}

TEST(NormRotary, a_gain_of_a_head_normalizes_each_head) {
  const at::Tensor x = at::tensor({5.0F, 1.0F, 0.01F, 0.04F}).view({1, 4}), turn = at::zeros({1, 2});
  const at::Tensor y = norm_rotary(x, at::ones({2}), at::ones({1, 2}), turn, 2, 0);
  EXPECT_TRUE(at::allclose(y, at::tensor({1.0F, -1.0F, -1.0F, 1.0F}).view({1, 2, 2})));
}

TEST(NormRotary, refuses_shapes_that_do_not_fit) {
  const at::Tensor x = at::randn({3, 8}), gain = at::ones({8});
  EXPECT_THROW(norm_rotary(x, gain, at::ones({3, 3}), at::ones({3, 3}), 2, kEps), c10::Error);
  EXPECT_THROW(norm_rotary(x, gain, at::ones({2, 4}), at::ones({2, 4}), 2, kEps), c10::Error);
  for (const int64_t size : {0, 2, 3, 16})
    EXPECT_THROW(norm_rotary(x, at::ones({size}), at::ones({3, 4}), at::ones({3, 4}), 2, kEps), c10::Error);
}

}  // namespace
}  // namespace dtopp::ops::norm_rotary_test

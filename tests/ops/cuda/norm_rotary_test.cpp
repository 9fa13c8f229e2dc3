// Tests norm_rotary's CUDA kernels, run on a CPU, against torch's operations in double precision.
#include "dtopp/ops/attention/norm_rotary.h"

#include <gtest/gtest.h>

#include "tests/ops/cuda/on_host.h"
#include "tests/ops/reference.h"

namespace dtopp::ops::norm_rotary_test {
namespace {

struct Case {
  int64_t tokens, heads, width;
};

constexpr Case kCases[] = {{0, 1, 2}, {1, 2, 8}, {5, 3, 6}, {70, 2, 40}, {40, 4, 64}, {3, 16, 128}};
constexpr double kEps = 1e-5;

struct Inputs {
  at::Tensor x, gain, cos, sin, grad;
  bool centered = true;
};

// `size`: numbers of the gain.
Inputs make_inputs(const Case& test, at::ScalarType dtype, int64_t size) {
  at::manual_seed(2);
  const int64_t hidden = test.heads * test.width;
  const at::Tensor angle = at::randn({test.tokens, test.width / 2}).repeat({1, 2}) * 5;
  return {(at::randn({test.tokens, hidden}) * 3 + 1).to(dtype), (at::randn({size}) + 1).to(dtype),
          angle.cos(), angle.sin(), at::randn({test.tokens, test.heads, test.width}).to(dtype)};
}

at::Tensor run_cuda(const Inputs& in) {
  const PoisonedMemory poisoned;
  return call_cuda<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                              double, bool)>("dtopp::norm_rotary_forward", in.x, in.gain, in.cos, in.sin,
                                             kEps, in.centered);
}

std::tuple<at::Tensor, at::Tensor> run_cuda_backward(const Inputs& in) {
  const PoisonedMemory poisoned;
  return call_cuda<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                      const at::Tensor&, const at::Tensor&, double, bool)>(
      "dtopp::norm_rotary_backward", in.grad, in.x, in.gain, in.cos, in.sin, kEps, in.centered);
}

void expect_rotated(const Case& test, at::ScalarType dtype, bool centered, int64_t size, double bound) {
  SCOPED_TRACE(testing::Message() << test.tokens << " tokens, " << test.heads << " heads of " << test.width
                                  << (centered ? ", centered" : "") << ", a gain of " << size);
  Inputs in = make_inputs(test, dtype, size);
  in.centered = centered;
  const at::Tensor x = in.x.to(at::kDouble).clone().requires_grad_();
  const at::Tensor gain = in.gain.to(at::kDouble).clone().requires_grad_();
  const at::Tensor expected = reference::norm_rotary(x, gain, in.cos.to(at::kDouble), in.sin.to(at::kDouble),
                                                     test.heads, kEps, centered);
  expected.backward(in.grad.to(at::kDouble));
  const at::Tensor y = run_cuda(in);
  ASSERT_EQ(y.sizes(), expected.sizes());
  EXPECT_EQ(y.scalar_type(), dtype);
  EXPECT_LT(reference::error(y, expected), bound);
  const auto [grad_x, grad_gain] = run_cuda_backward(in);
  EXPECT_LT(reference::error(grad_x, x.grad()), bound);
  EXPECT_LT(reference::error(grad_gain, gain.grad()), bound);
  EXPECT_EQ(grad_gain.scalar_type(), dtype);
}

TEST(NormRotaryOnHost, and_its_gradients_match_double_precision) {
  for (const Case& test : kCases) {
    for (const bool centered : {true, false}) {
      for (const int64_t size : {test.heads * test.width, test.width}) {
        expect_rotated(test, at::kFloat, centered, size, 1e-5);
        expect_rotated(test, at::kBFloat16, centered, size, 1.0 / 256);
      }
    }
  }
}

TEST(NormRotaryOnHost, any_order_of_threads_and_blocks_gives_the_same_bits) {
  const Inputs in = make_inputs({70, 3, 32}, at::kBFloat16, 32);
  const at::Tensor y = run_cuda(in);
  const auto [grad_x, grad_gain] = run_cuda_backward(in);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    cuda_on_host::set_seed(seed);
    EXPECT_TRUE(at::equal(run_cuda(in), y));
    const auto [again_x, again_gain] = run_cuda_backward(in);
    EXPECT_TRUE(at::equal(again_x, grad_x));
    EXPECT_TRUE(at::equal(again_gain, grad_gain));
  }
}

}  // namespace
}  // namespace dtopp::ops::norm_rotary_test

#include "dtopp/ops/linear.h"

#include <gtest/gtest.h>

#include "tests/ops/reference.h"

namespace dtopp {
namespace {

struct Bound {
  at::ScalarType dtype;
  double value;
};

// bf16 inputs are exact; the result is rounded once (2^-8 of its value).
constexpr Bound kBounds[] = {{at::kFloat, 1e-5}, {at::kBFloat16, 1.0 / 256}};

TEST(Linear, and_its_gradients_match_double_precision) {
  for (const auto& [dtype, bound] : kBounds) {
    const at::Tensor x = at::randn({3, 7, 20}).to(dtype).requires_grad_();
    const at::Tensor weight = at::randn({11, 20}).to(dtype).requires_grad_();
    const at::Tensor exact_x = x.detach().to(at::kDouble).requires_grad_();
    const at::Tensor exact_weight = weight.detach().to(at::kDouble).requires_grad_();
    const at::Tensor y = dtopp::linear(x, weight), expected = at::matmul(exact_x, exact_weight.t());
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_LT(reference::error(y, expected), bound);
    const at::Tensor grad = at::randn({3, 7, 11}).to(dtype);
    y.backward(grad);
    expected.backward(grad.to(at::kDouble));
    EXPECT_LT(reference::error(x.grad(), exact_x.grad()), bound);
    EXPECT_LT(reference::error(weight.grad(), exact_weight.grad()), bound);
  }
}

TEST(Linear, gives_no_gradient_nobody_asked_for) {
  const at::Tensor x = at::randn({4, 6}).to(at::kBFloat16);
  const at::Tensor weight = at::randn({5, 6}).to(at::kBFloat16).requires_grad_();
  dtopp::linear(x, weight).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(weight.grad().defined());
}

at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t length = q.size(2);
  const at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor later = at::ones({length, length}, at::kBool).triu(1);
  return at::matmul(scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1), v);
}

TEST(CausalAttention, sees_no_later_token_and_matches_double_precision) {
  // Hardware bf16 kernels round the probabilities as well as the result.
  for (const auto& [dtype, bound] : {Bound{at::kFloat, 1e-5}, Bound{at::kBFloat16, 1.0 / 64}}) {
    std::vector<at::Tensor> in, exact;
    for (int i = 0; i < 3; ++i) {
      in.push_back(at::randn({2, 3, 17, 8}).to(dtype).requires_grad_());
      exact.push_back(in.back().detach().to(at::kDouble).requires_grad_());
    }
    const at::Tensor y = causal_attention(in[0], in[1], in[2]);
    const at::Tensor expected = attention_reference(exact[0], exact[1], exact[2]);
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_LT(reference::error(y, expected), bound);
    const at::Tensor grad = at::randn(y.sizes()).to(dtype);
    y.backward(grad);
    expected.backward(grad.to(at::kDouble));
    for (int i = 0; i < 3; ++i) EXPECT_LT(reference::error(in[i].grad(), exact[i].grad()), bound);
  }
}

}  // namespace
}  // namespace dtopp

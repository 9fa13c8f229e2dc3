#include "dtopp/ops/attention/attention.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/ops/reference.h"
#include "tests/ops/same_gradients.h"

namespace dtopp::ops {
namespace {

at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               bool causal = true) {
  const int64_t length = q.size(2);
  const at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor later = at::full({length, length}, causal, at::kBool).triu(1);
  return at::matmul(scores.masked_fill(later, -std::numeric_limits<double>::infinity()).softmax(-1), v);
}

struct AttentionCase {
  std::vector<int64_t> shape;  // [B, H, L, K]
  double deviation;            // standard deviation of q and k; a larger one spreads the scores
};

// Lengths around the sizes of tiles (64) and blocks (128, 256, 512), one token, no token, and heads of odd
// width.
const std::vector<AttentionCase> kCases = {{{2, 3, 17, 8}, 1},   {{1, 1, 1, 4}, 1},    {{2, 1, 0, 4}, 1},
                                           {{1, 2, 126, 5}, 1},  {{1, 2, 127, 64}, 3}, {{1, 1, 256, 16}, 1},
                                           {{1, 1, 257, 16}, 8}, {{2, 2, 700, 32}, 1}, {{1, 2, 64, 64}, 1},
                                           {{1, 1, 40, 256}, 1}, {{1, 1, 30, 300}, 1}};

void expect_attention(const AttentionCase& test, at::ScalarType dtype, bool causal, double bound) {
  SCOPED_TRACE(testing::Message() << at::IntArrayRef(test.shape) << " of " << dtype
                                  << (causal ? ", causal" : ""));
  std::vector<at::Tensor> in, exact;
  for (int i = 0; i < 3; ++i) {
    in.push_back((at::randn(test.shape) * (i < 2 ? test.deviation : 1)).to(dtype).requires_grad_());
    exact.push_back(in.back().detach().to(at::kDouble).requires_grad_());
  }
  const at::Tensor y = self_attention(in[0], in[1], in[2], causal);
  const at::Tensor expected = attention_reference(exact[0], exact[1], exact[2], causal);
  expect_same_gradients(y, expected, in, exact, bound);
}

TEST(SelfAttention, matches_double_precision_and_where_causal_sees_no_later_token) {
  at::manual_seed(5);
  // In bf16, hardware kernels also round the probabilities, and the backward pass reads the rounded result.
  // Larger scores have larger rounding errors, which softmax turns into relative errors.
  for (const AttentionCase& test : kCases) {
    for (const bool causal : {true, false}) {
      expect_attention(test, at::kFloat, causal, 1e-5 * test.deviation);
      expect_attention(test, at::kBFloat16, causal, 1.0 / 64);
    }
  }
}

TEST(SelfAttention, takes_heads_as_projections_lay_them_out) {
  const auto projected = [] { return at::randn({2, 150, 3, 8}).requires_grad_(); };
  const at::Tensor q = projected(), k = projected(), v = projected();
  const auto heads = [](const at::Tensor& x) { return x.transpose(1, 2); };
  const at::Tensor y = self_attention(heads(q), heads(k), heads(v), /*causal=*/true);
  const auto exact = [&](const at::Tensor& x) { return heads(x.detach().to(at::kDouble)); };
  EXPECT_LT(reference::error(y, attention_reference(exact(q), exact(k), exact(v))), 1e-5);
  EXPECT_TRUE(y.transpose(1, 2).is_contiguous());
  y.sum().backward();
  EXPECT_TRUE(q.grad().isfinite().all().item<bool>());
}

TEST(SelfAttention, has_the_same_bits_on_any_number_of_threads) {
  const int before = at::get_num_threads();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> in;
    for (int i = 0; i < 4; ++i) in.push_back(at::randn({1, 3, 600, 16}).to(dtype).requires_grad_(i < 3));
    std::vector<std::vector<at::Tensor>> results;
    for (const int threads : {1, 2, 5}) {
      at::set_num_threads(threads);
      const at::Tensor y = self_attention(in[0], in[1], in[2], /*causal=*/true);
      results.push_back(torch::autograd::grad({y}, {in[0], in[1], in[2]}, {in[3]}));
      results.back().push_back(y);
      for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(at::equal(results.back()[i], results[0][i]));
    }
  }
  at::set_num_threads(before);
}

TEST(SelfAttention, carries_what_is_not_a_number_on) {
  at::Tensor q = at::randn({1, 2, 20, 8});
  q[0][1][7][3] = std::nan("");
  const at::Tensor v = at::randn({1, 2, 20, 8});
  const at::Tensor bad = self_attention(q, v, v, /*causal=*/true).isnan().any(-1)[0];
  EXPECT_TRUE(bad[1][7].item<bool>());
  EXPECT_EQ(bad.sum().item<int64_t>(), 1);
}

}  // namespace
}  // namespace dtopp::ops

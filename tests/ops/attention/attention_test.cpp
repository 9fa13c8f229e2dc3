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

// The document of every token, int64 [T].
at::Tensor documents_of(const std::vector<int32_t>& offsets) {
  const at::Tensor document_T = at::empty({offsets.back()}, at::kLong);
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    document_T.narrow(0, offsets[i], offsets[i + 1] - offsets[i]).fill_(static_cast<int64_t>(i));
  return document_T;
}

// Every token attends to all tokens, with later ones and those of other documents masked. q, k, v [T, H, K].
at::Tensor masked_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::vector<int32_t>& offsets) {
  const at::Tensor document_T = documents_of(offsets);
  const at::Tensor other = document_T.unsqueeze(1).ne(document_T.unsqueeze(0));
  const at::Tensor later = at::ones_like(other).triu(1);
  const at::Tensor scores_HTT =
      at::einsum("thk,shk->hts", {q, k}) / std::sqrt(static_cast<double>(q.size(2)));
  const at::Tensor masked =
      scores_HTT.masked_fill(other.logical_or(later), -std::numeric_limits<double>::infinity());
  return at::einsum("hts,shk->thk", {masked.softmax(-1), v});
}

struct DocumentCase {
  int64_t heads, head_size;
  std::vector<int32_t> offsets;
};

// One token, no token, consecutive lengths, the kernels' block sizes (32, 64, 256), and one token more.
const std::vector<DocumentCase> kDocumentCases = {{2, 8, {0, 17}},
                                                  {1, 4, {0, 1}},
                                                  {3, 8, {0, 1, 2, 3, 10, 10, 30}},
                                                  {2, 5, {0, 32, 64, 97, 300, 557}},
                                                  {1, 64, {0, 256, 513, 514}},
                                                  {2, 16, {0, 40, 80, 120, 160}}};

void expect_documents(const DocumentCase& test, at::ScalarType dtype, double bound) {
  SCOPED_TRACE(testing::Message() << test.offsets.size() - 1 << " documents of " << test.offsets.back()
                                  << " tokens, " << dtype);
  const std::vector<int64_t> shape = {test.offsets.back(), test.heads, test.head_size};
  std::vector<at::Tensor> in, exact;
  for (int i = 0; i < 3; ++i) {
    in.push_back(at::randn(shape).to(dtype).requires_grad_());
    exact.push_back(in.back().detach().to(at::kDouble).requires_grad_());
  }
  const at::Tensor y = document_attention(in[0], in[1], in[2], at::tensor(test.offsets, at::kInt), shape[0]);
  const at::Tensor expected = masked_reference(exact[0], exact[1], exact[2], test.offsets);
  expect_same_gradients(y, expected, in, exact, bound);
}

TEST(DocumentAttention, matches_a_masked_reference_in_double_precision) {
  at::manual_seed(5);
  for (const DocumentCase& test : kDocumentCases) {
    expect_documents(test, at::kFloat, 1e-5);
    expect_documents(test, at::kBFloat16, 1.0 / 64);
  }
}

TEST(DocumentAttention, of_whole_windows_is_self_attention_to_the_bit) {
  const int64_t B = 3, L = 70, H = 2, K = 8;
  const auto split = [&](const at::Tensor& x) { return x.view({B, L, H, K}).transpose(1, 2); };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> in, windows;
    for (int i = 0; i < 3; ++i) {
      in.push_back(at::randn({B * L, H, K}).to(dtype).requires_grad_());
      windows.push_back(in.back().detach().clone().requires_grad_());
    }
    const at::Tensor y = document_attention(in[0], in[1], in[2], at::tensor({0, 70, 140, 210}, at::kInt), L);
    const at::Tensor z =
        self_attention(split(windows[0]), split(windows[1]), split(windows[2]), true).transpose(1, 2);
    EXPECT_TRUE(at::equal(y.view({B, L, H, K}), z));
    y.sum().backward();
    z.sum().backward();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(in[i].grad(), windows[i].grad()));
  }
}

TEST(DocumentAttention, takes_no_tokens) {
  const at::Tensor none = at::empty({0, 2, 8});
  EXPECT_EQ(document_attention(none, none, none, at::tensor({0}, at::kInt), 1).numel(), 0);
}

TEST(DocumentAttention, offsets_that_do_not_fit_are_refused) {
  const at::Tensor x = at::randn({4, 2, 8});
  for (const auto& offsets : std::vector<std::vector<int32_t>>{{}, {0, 3}, {1, 4}, {0, 3, 2, 4}})
    EXPECT_THROW(document_attention(x, x, x, at::tensor(offsets, at::kInt), 4), c10::Error);
  EXPECT_THROW(document_attention(x, x, x, at::tensor({0, 4}, at::kLong), 4), c10::Error);
}

}  // namespace

}  // namespace dtopp::ops

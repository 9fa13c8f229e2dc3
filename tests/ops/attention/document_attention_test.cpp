#include "dtopp/ops/attention/document_attention.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "dtopp/ops/attention/attention.h"
#include "tests/ops/reference.h"
#include "tests/ops/same_gradients.h"

namespace dtopp::ops {
namespace {

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

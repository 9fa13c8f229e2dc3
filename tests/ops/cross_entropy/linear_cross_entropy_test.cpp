#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ops/reference.h"

namespace dtopp::ops::linear_cross_entropy_test {
namespace {

constexpr double kZWeight = 0.01;
// bf16 gradients are computed in fp32 and rounded once, then again when the loss is scaled: 2^-8 each.
constexpr double kBfloat16Bound = 1.0 / 128;

struct Case {
  at::Tensor x_TD, weight_VD, targets_T;
};

Case make_case(int64_t tokens, int64_t hidden, int64_t vocabulary, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(3);
  return {at::randn({tokens, hidden}).to(dtype).requires_grad_(),
          at::randn({vocabulary, hidden}).div(2).to(dtype).requires_grad_(),
          at::randint(vocabulary, {tokens}, at::kLong)};
}

void expect_matches_reference(const Case& c, double bound) {
  const at::Tensor x = c.x_TD.detach().to(at::kDouble).requires_grad_();
  const at::Tensor weight = c.weight_VD.detach().to(at::kDouble).requires_grad_();
  const CrossEntropy out = linear_cross_entropy(c.x_TD, c.weight_VD, c.targets_T, kZWeight);
  const auto [nll, z] = reference::cross_entropy(x, weight, c.targets_T);
  const at::Tensor loss = nll + kZWeight * z;
  EXPECT_LT(reference::error(out.loss, loss), 1e-5);
  EXPECT_LT(reference::error(out.nll, nll), 1e-5);
  EXPECT_LT(reference::error(out.z, z), 1e-5);
  (out.loss * 0.7).backward();
  (loss * 0.7).backward();
  EXPECT_LT(reference::error(c.x_TD.grad(), x.grad()), bound);
  EXPECT_LT(reference::error(c.weight_VD.grad(), weight.grad()), bound);
}

TEST(LinearCrossEntropy, matches_double_precision) {
  expect_matches_reference(make_case(50, 12, 37), 1e-5);
  expect_matches_reference(make_case(1, 12, 1), 1e-5);
  expect_matches_reference(make_case(50, 12, 37, at::kBFloat16), kBfloat16Bound);
}

TEST(LinearCrossEntropy, matches_over_several_chunks_of_tokens) {
  expect_matches_reference(make_case(2500, 4, 20), 1e-5);  // more tokens than a chunk holds
  expect_matches_reference(make_case(2500, 4, 20, at::kBFloat16), kBfloat16Bound);
  expect_matches_reference(make_case(60, 8, 400'000), 1e-5);  // 41 rows of logits fit
}

TEST(LinearCrossEntropy, matches_over_several_blocks_of_a_bfloat16_weight) {
  expect_matches_reference(make_case(20, 64, 70'000, at::kBFloat16), kBfloat16Bound);  // 32,768 rows fit
}

TEST(LinearCrossEntropy, ignored_targets_count_nowhere) {
  Case c = make_case(50, 12, 37);
  c.targets_T.slice(0, 10, 30).fill_(-100);
  expect_matches_reference(c, 1e-5);
  EXPECT_FALSE(c.x_TD.grad().slice(0, 10, 30).any().item<bool>());
}

TEST(LinearCrossEntropy, of_no_tokens_is_zero_with_zero_gradients) {
  const Case c = make_case(0, 12, 37);
  const CrossEntropy out = linear_cross_entropy(c.x_TD, c.weight_VD, c.targets_T, kZWeight);
  EXPECT_EQ(out.loss.item<float>(), 0.0F);
  out.loss.backward();
  EXPECT_FALSE(c.weight_VD.grad().any().item<bool>());
}

TEST(LinearCrossEntropy, a_kept_graph_gives_the_same_gradients_again) {
  const Case c = make_case(9, 4, 11);
  const CrossEntropy out = linear_cross_entropy(c.x_TD, c.weight_VD, c.targets_T, kZWeight);
  const auto grads = [&](bool keep) {
    return torch::autograd::grad({out.loss * 3}, {c.x_TD, c.weight_VD}, {}, keep);
  };
  const auto first = grads(true), second = grads(false);
  EXPECT_TRUE(at::equal(first[0], second[0]));
  EXPECT_TRUE(at::equal(first[1], second[1]));
  EXPECT_THROW(grads(false), c10::Error);
}

TEST(LinearCrossEntropy, survives_logits_far_apart) {
  const Case c{at::tensor({1e4F}).view({1, 1}).requires_grad_(), at::tensor({1.0F, -1.0F}).view({2, 1}),
               at::tensor({1}, at::kLong)};
  const CrossEntropy out = linear_cross_entropy(c.x_TD, c.weight_VD, c.targets_T);
  EXPECT_FLOAT_EQ(out.nll.item<float>(), 2e4F);
  out.loss.backward();
  EXPECT_FLOAT_EQ(c.x_TD.grad().item<float>(), 2.0F);
}

TEST(LinearCrossEntropy, names_the_target_that_is_out_of_range) {
  const Case c = make_case(5, 4, 11);
  c.targets_T[3] = 11;
  try {
    linear_cross_entropy(c.x_TD, c.weight_VD, c.targets_T);
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(
        error.what_without_backtrace(),
        testing::StartsWith("linear_cross_entropy: expected targets from 0 to 10, got 11 at index 3"));
  }
}

TEST(TokenLogProbs, match_double_precision) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Case c = make_case(1200, 6, 300, dtype);
    const auto [log_probs, greedy] = token_log_probs(c.x_TD, c.weight_VD, c.targets_T);
    const at::Tensor logits = at::matmul(c.x_TD.to(at::kDouble), c.weight_VD.to(at::kDouble).t());
    const at::Tensor expected = logits.log_softmax(-1).gather(1, c.targets_T.unsqueeze(1)).squeeze(1);
    EXPECT_LT(reference::error(log_probs, expected), 1e-5);
    EXPECT_TRUE(at::equal(greedy, logits.argmax(-1)));
    EXPECT_FALSE(log_probs.requires_grad());
  }
}

TEST(TokenLogProbs, take_the_lowest_id_on_ties) {
  const at::Tensor weight = at::zeros({90, 3});
  weight.index_put_({at::tensor({5, 40, 89}, at::kLong)}, at::ones({3}));
  const auto greedy = std::get<1>(token_log_probs(at::ones({2, 3}), weight, at::tensor({0, 89}, at::kLong)));
  EXPECT_TRUE(at::equal(greedy, at::full({2}, 5, at::kLong)));
}

}  // namespace
}  // namespace dtopp::ops::linear_cross_entropy_test

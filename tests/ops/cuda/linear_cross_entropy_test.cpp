// Tests the CUDA side of linear_cross_entropy and token_log_probs; kernels run on a CPU, products run in
// torch.
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/ops/cross_entropy/linear_cross_entropy_chunks_cuda.h"
#include "tests/ops/cuda/on_host.h"
#include "tests/ops/reference.h"

namespace dtopp::ops::linear_cross_entropy_test {
namespace {

constexpr double kZWeight = 0.01;
constexpr int64_t kIgnored = -100;

struct Case {
  at::Tensor x_TD, weight_VD, targets_T;
};

struct Shape {
  int64_t tokens, hidden, vocabulary;
};

Case make_case(const Shape& shape, at::ScalarType dtype) {
  at::manual_seed(3);
  return {at::randn({shape.tokens, shape.hidden}).to(dtype),
          at::randn({shape.vocabulary, shape.hidden}).div(2).to(dtype),
          at::randint(shape.vocabulary, {shape.tokens}, at::kLong)};
}

cuda::LossOutputs run_cuda(const Case& c, int64_t chunk, bool need_x = true, bool need_weight = true) {
  const PoisonedMemory poisoned;
  return cuda::form_loss({c.x_TD, c.weight_VD, c.targets_T, kZWeight, kIgnored, need_x, need_weight}, chunk);
}

// In bf16 the gradients of logits are rounded, and so are the results computed from them: 2^-9 each, doubled.
double bound(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 1.0 / 128;
}

void expect_matches_double_precision(const Case& c, int64_t chunk) {
  const at::ScalarType dtype = c.x_TD.scalar_type();
  SCOPED_TRACE(testing::Message() << c.x_TD.sizes() << " " << c.weight_VD.sizes() << " " << dtype << " chunk "
                                  << chunk);
  const at::Tensor x = c.x_TD.to(at::kDouble).clone().requires_grad_();
  const at::Tensor weight = c.weight_VD.to(at::kDouble).clone().requires_grad_();
  const auto [nll, z] = reference::cross_entropy(x, weight, c.targets_T);
  const at::Tensor loss = nll + kZWeight * z;
  loss.backward();
  const cuda::LossOutputs out = run_cuda(c, chunk);
  const double near = dtype == at::kDouble ? 1e-12 : 1e-5;
  EXPECT_LT(reference::error(out.loss, loss), near);
  EXPECT_LT(reference::error(out.nll, nll), near);
  EXPECT_LT(reference::error(out.z, z), near);
  EXPECT_LT(reference::error(out.grad_x_TD, x.grad()), bound(dtype));
  EXPECT_LT(reference::error(out.grad_weight_VD, weight.grad()), bound(dtype));
  EXPECT_EQ(out.grad_x_TD.scalar_type(), dtype);
  EXPECT_EQ(out.grad_weight_VD.scalar_type(), dtype);
}

TEST(LinearCrossEntropyOnHost, matches_double_precision_for_any_shape) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const Shape& shape : {Shape{50, 12, 37}, {1, 12, 1}, {20, 8, 4096}, {9, 16, 5003}, {7, 4, 2}})
      expect_matches_double_precision(make_case(shape, dtype), 50);
  }
}

TEST(LinearCrossEntropyOnHost, matches_over_several_chunks) {
  for (const int64_t chunk : {1, 7, 25, 49})
    expect_matches_double_precision(make_case({50, 12, 36}, at::kBFloat16), chunk);
}

TEST(LinearCrossEntropyOnHost, ignored_targets_count_nowhere) {
  for (const int64_t vocabulary : {37, 40}) {
    Case c = make_case({50, 12, vocabulary}, at::kFloat);
    c.targets_T.slice(0, 10, 30).fill_(kIgnored);
    expect_matches_double_precision(c, 20);
    EXPECT_FALSE(run_cuda(c, 50).grad_x_TD.slice(0, 10, 30).any().item<bool>());
  }
}

TEST(LinearCrossEntropyOnHost, of_no_targets_is_zero_with_zero_gradients) {
  for (const int64_t tokens : {0, 5}) {
    Case c = make_case({tokens, 12, 37}, at::kFloat);
    c.targets_T.fill_(kIgnored);
    const cuda::LossOutputs out = run_cuda(c, 50);
    EXPECT_EQ(out.loss.item<float>(), 0.0F);
    EXPECT_FALSE(out.grad_weight_VD.any().item<bool>());
    EXPECT_FALSE(out.grad_x_TD.any().item<bool>());
  }
}

TEST(LinearCrossEntropyOnHost, forms_only_the_gradients_needed) {
  const Case c = make_case({20, 8, 30}, at::kFloat);
  const cuda::LossOutputs all = run_cuda(c, 8), none = run_cuda(c, 8, false, false);
  EXPECT_TRUE(at::equal(all.loss, none.loss));
  EXPECT_EQ(none.grad_x_TD.numel() + none.grad_weight_VD.numel(), 0);
  EXPECT_TRUE(at::equal(run_cuda(c, 8, true, false).grad_x_TD, all.grad_x_TD));
  EXPECT_TRUE(at::equal(run_cuda(c, 8, false, true).grad_weight_VD, all.grad_weight_VD));
}

TEST(LinearCrossEntropyOnHost, survives_logits_far_apart) {
  const Case c{at::tensor({1e4F}).view({1, 1}), at::tensor({1.0F, -1.0F}).view({2, 1}),
               at::tensor({1}, at::kLong)};
  const cuda::LossOutputs out =
      cuda::form_loss({c.x_TD, c.weight_VD, c.targets_T, 0, kIgnored, true, true}, 1);
  EXPECT_FLOAT_EQ(out.nll.item<float>(), 2e4F);
  EXPECT_FLOAT_EQ(out.grad_x_TD.item<float>(), 2.0F);
}

TEST(LinearCrossEntropyOnHost, any_order_of_threads_and_blocks_gives_the_same_bits) {
  const Case c = make_case({30, 8, 3000}, at::kBFloat16);
  const cuda::LossOutputs first = run_cuda(c, 20);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    cuda_on_host::set_seed(seed);
    const cuda::LossOutputs out = run_cuda(c, 20);
    EXPECT_TRUE(at::equal(out.loss, first.loss));
    EXPECT_TRUE(at::equal(out.grad_x_TD, first.grad_x_TD));
    EXPECT_TRUE(at::equal(out.grad_weight_VD, first.grad_weight_VD));
  }
}

TEST(LinearCrossEntropyOnHost, traps_at_a_target_out_of_range) {
  for (const int64_t bad : {-1, 37}) {
    Case c = make_case({5, 12, 37}, at::kFloat);
    c.targets_T[3] = bad;
    EXPECT_THROW(run_cuda(c, 5), std::runtime_error);
  }
}

TEST(LinearCrossEntropyOnHost, the_op_takes_the_same_path) {
  const Case c = make_case({50, 12, 37}, at::kBFloat16);
  using Outputs = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
  const auto [loss, nll, z, grad_x, grad_weight] =
      call_cuda<Outputs(const at::Tensor&, const at::Tensor&, const at::Tensor&, double, int64_t, bool,
                        bool)>("dtopp::linear_cross_entropy_forward", c.x_TD, c.weight_VD, c.targets_T,
                               kZWeight, kIgnored, false, false);
  EXPECT_TRUE(at::equal(loss, run_cuda(c, 50).loss));
}

TEST(LinearCrossEntropyOnHost, chunks_are_equal_and_hold_what_fits) {
  EXPECT_EQ(cuda::tokens_per_chunk(32768, 50432, at::kFloat), 4682);  // 7 chunks of at most 5,322
  EXPECT_EQ(cuda::tokens_per_chunk(100, 50432, at::kFloat), 100);
  EXPECT_EQ(cuda::tokens_per_chunk(0, 50432, at::kFloat), 1);
  EXPECT_EQ(cuda::tokens_per_chunk(3, 1LL << 31, at::kFloat), 1);
}

using LogProbs = std::tuple<at::Tensor, at::Tensor>;

LogProbs run_log_probs(const Case& c) {
  return call_cuda<LogProbs(const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
      "dtopp::token_log_probs", c.x_TD, c.weight_VD, c.targets_T);
}

TEST(TokenLogProbsOnHost, match_double_precision) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const Shape& shape : {Shape{40, 6, 300}, {20, 6, 2051}, {0, 4, 9}, {3, 4, 1}}) {
      const Case c = make_case(shape, dtype);
      const auto [log_probs, greedy] = run_log_probs(c);
      const at::Tensor logits = at::matmul(c.x_TD.to(at::kDouble), c.weight_VD.to(at::kDouble).t());
      const at::Tensor expected = logits.log_softmax(-1).gather(1, c.targets_T.unsqueeze(1)).squeeze(1);
      EXPECT_LT(reference::error(log_probs, expected), 1e-5);
      EXPECT_TRUE(at::equal(greedy, logits.argmax(-1)));
    }
  }
}

TEST(TokenLogProbsOnHost, take_the_lowest_id_on_ties) {
  const at::Tensor weight = at::zeros({2000, 3});
  weight.index_put_({at::tensor({5, 40, 1999}, at::kLong)}, at::ones({3}));
  const auto greedy = std::get<1>(run_log_probs({at::ones({2, 3}), weight, at::tensor({0, 89}, at::kLong)}));
  EXPECT_TRUE(at::equal(greedy, at::full({2}, 5, at::kLong)));
}

TEST(TokenLogProbsOnHost, carry_rows_that_are_not_finite_on) {
  Case c = make_case({3, 4, 50}, at::kFloat);
  c.x_TD[1].fill_(std::numeric_limits<float>::quiet_NaN());
  const auto [log_probs, greedy] = run_log_probs(c);
  EXPECT_TRUE(log_probs[1].isnan().item<bool>());
  EXPECT_EQ(greedy[1].item<int64_t>(), 0);
  EXPECT_TRUE(at::isfinite(log_probs[0]).item<bool>());
}

}  // namespace
}  // namespace dtopp::ops::linear_cross_entropy_test

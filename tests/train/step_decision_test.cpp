#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/ops/route/cumulative_prob_bins.h"
#include "dtopp/train/step.h"
#include "tests/distributed/rank_threads.h"

namespace dtopp::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

at::Tensor scalar(double value) { return at::scalar_tensor(value, at::kFloat); }

// The cumulative-probability histogram of a micro-batch, for all layers.
at::Tensor prob_histogram() {
  return at::arange(ops::kCumulativeProbBins, at::kLong).view({1, ops::kCumulativeProbBins});
}

// Two layers of three experts and three tokens, in two micro-batches.
StepSums sums(double loss = 2.0) {
  StepSums sums;
  for (int micro = 0; micro < 2; ++micro)
    sums.add_losses(static_cast<int64_t>(sums.losses.size()), scalar(loss),
                    {{"a", scalar(1.5)}, {"b", scalar(3)}});
  sums.activations = moe::ActivationStatistics(at::tensor({2, 1, 0, 3, 3, 1}, at::kLong).view({2, 3}),
                                               at::tensor({0, 3, 0, 0, 0, 1, 0, 2}, at::kLong).view({2, 4}),
                                               at::tensor({10, 36}, at::kLong), 3);
  sums.max_assignments_L = at::tensor({3, 7}, at::kLong);
  for (int micro = 0; micro < 2; ++micro)
    sums.add_statistics(prob_histogram(), /*logit_sums_of_micro_batch=*/{});
  return sums;
}

const StepShape kShape = {{"a", "b"}, 2, 3, 2, 3, {1, ops::kCumulativeProbBins}};

StepNumbers numbers(const StepSums& sums, const StepShape& shape, double norm, bool overflowed) {
  distributed::SingleRank alone;
  const at::Tensor squares = at::full({1}, static_cast<float>(norm), at::kDouble).square();
  return all_reduce(sums.numbers(shape, squares, at::scalar_tensor(overflowed, at::kBool)), alone);
}

StepNumbers numbers(double loss, double norm, bool overflowed) {
  return numbers(sums(loss), kShape, norm, overflowed);
}

bool applied(const StepNumbers& numbers) { return decide(numbers, {}).applied.item<bool>(); }

TEST(StepDecision, applies_what_is_finite_and_had_room) {
  EXPECT_TRUE(applied(numbers(2, 0.5, false)));
  EXPECT_FALSE(applied(numbers(2, 0.5, true)));
  for (const double bad : {kInfinity, -kInfinity, kNaN}) {
    EXPECT_FALSE(applied(numbers(bad, 0.5, false)));
    EXPECT_FALSE(applied(numbers(2, std::abs(bad), false)));
  }
}

// Second moments hold squares in f32.
TEST(StepDecision, skips_gradients_whose_squares_are_not_finite) {
  config::OptimizerConfig config;
  config.grad_clip = 0;
  EXPECT_TRUE(decide(numbers(2, 9e18, false), config).applied.item<bool>());
  EXPECT_FALSE(decide(numbers(2, 2e19, false), config).applied.item<bool>());
  config.grad_clip = 1;
  EXPECT_TRUE(decide(numbers(2, 2e19, false), config).applied.item<bool>());
}

TEST(StepDecision, divides_gradients_by_what_their_norm_is_above_the_clip) {
  config::OptimizerConfig config;
  const auto divisor = [&](double norm) {
    return decide(numbers(2, norm, false), config).divisor.item<double>();
  };
  config.grad_clip = 0.5;
  EXPECT_EQ(divisor(0.25), 1);
  EXPECT_NEAR(divisor(4), 8, 1e-5);
  config.grad_clip = 0;
  EXPECT_EQ(divisor(4), 1);
}

TEST(StepDecision, ends_a_run_after_more_skips_than_are_allowed) {
  config::TrainingConfig config;
  config.max_skips = 2;
  StepResult result;
  result.skipped = true;
  result.consecutive_skips = 2;
  EXPECT_FALSE(gives_up(result, config));
  result.consecutive_skips = 3;
  EXPECT_TRUE(gives_up(result, config));
  result.skipped = false;
  EXPECT_FALSE(gives_up(result, config));
}

void add_states(StepNumbers& numbers) {
  numbers.applied = at::scalar_tensor(true, at::kBool);
  numbers.scale_L = at::tensor({1.5, 0.5}, at::kFloat);
}

TEST(StepNumbers, come_to_the_host_as_they_were) {
  const float norm = 0.1F;
  StepNumbers all = numbers(2, norm, false);
  EXPECT_TRUE(all.statistics.equal(2 * prob_histogram().to(at::kDouble)));
  EXPECT_EQ(all.logit_sums.numel(), 0);
  add_states(all);
  all.router = {{"threshold", at::full({1}, 0.25, at::kDouble)}};
  const StepResult result = StepInFlight(StepResult(), kShape, all, 0, 0).read();
  EXPECT_EQ(result.loss, 2);
  EXPECT_THAT(result.losses, testing::ElementsAre(testing::Pair("a", 1.5), testing::Pair("b", 3)));
  EXPECT_EQ(result.grad_norm, norm);
  EXPECT_FALSE(result.overflowed);
  EXPECT_FALSE(result.skipped);
  EXPECT_EQ(result.max_assignments_L, (std::vector<int64_t>{3, 7}));
  EXPECT_TRUE(result.activations.tokens_per_expert().equal(sums().activations.tokens_per_expert()));
  EXPECT_TRUE(result.activations.histogram().equal(sums().activations.histogram()));
  EXPECT_TRUE(result.activations.token_sums().equal(sums().activations.token_sums()));
  EXPECT_EQ(result.activations.tokens(), 3);
  ASSERT_NE(result.router_values("threshold"), nullptr);
  EXPECT_EQ(*result.router_values("threshold"), std::vector<double>{0.25});
  EXPECT_EQ(result.router_values("other"), nullptr);
  EXPECT_EQ(result.scales, (std::vector<double>{1.5, 0.5}));
}

// The square of every f32 fits an f64, and its root is the f32 again.
TEST(StepNumbers, hold_the_norm_exactly) {
  for (float norm = 1e-12F; norm < 1e12F; norm *= 1.37F) {
    ASSERT_EQ(std::sqrt(numbers(2, norm, false).grad_squares.item<double>()), norm);
  }
}

TEST(StepNumbers, of_a_dense_model_hold_no_routing) {
  StepSums dense = sums();
  dense.activations = moe::ActivationStatistics(0);
  dense.max_assignments_L = at::zeros({0}, at::kLong);
  dense.statistics = at::Tensor();
  const StepShape shape = {{"a", "b"}, 2, 3};
  StepNumbers all = numbers(dense, shape, 1, false);
  add_states(all);
  const StepResult result = StepInFlight(StepResult(), shape, all, 0, 0).read();
  EXPECT_EQ(result.loss, 2);
  EXPECT_EQ(result.activations.num_layers(), 0);
  EXPECT_TRUE(result.router.empty());
  EXPECT_TRUE(result.max_assignments_L.empty());
}

TEST(StepNumbers, add_up_over_ranks) {
  const StepShape shape = {{"a"}, 3, 3, 2, 3, {2}};
  distributed::run_group(3, [&](distributed::Collectives& ranks) {
    const int64_t rank = ranks.rank();
    StepSums sums;
    sums.activations = moe::ActivationStatistics(2);
    sums.max_assignments_L = at::zeros({2}, at::kLong);
    if (rank != 1) {  // rank 1 has no micro-batch
      sums.add_losses(rank, scalar(1.0F + static_cast<float>(rank)), {{"a", scalar(4)}});
      sums.max_assignments_L = at::tensor({rank, 2 - rank}, at::kLong);
      sums.add_statistics(at::tensor({rank, int64_t{5}}, at::kLong), {});
      sums.stop_requested = rank == 2;
    }
    const at::Tensor squares =
        rank == 1 ? at::zeros({2}, at::kDouble) : at::tensor({1.0 + rank, 2.0}, at::kDouble);
    const StepNumbers all =
        all_reduce(sums.numbers(shape, squares, at::scalar_tensor(rank == 0, at::kBool)), ranks);
    EXPECT_TRUE(all.losses.equal(at::tensor({4.0, 8.0}, at::kDouble)));
    EXPECT_EQ(all.grad_squares.item<double>(), 8);
    EXPECT_EQ(all.overflowed.item<double>(), 1);
    EXPECT_EQ(all.stop_requested.item<double>(), 1);
    EXPECT_TRUE(all.max_assignments_L.equal(at::tensor({2.0, 2.0}, at::kDouble)));
    EXPECT_TRUE(all.statistics.equal(at::tensor({2.0, 10.0}, at::kDouble)));
    sums.statistics = at::zeros({3});
    EXPECT_THROW(sums.numbers(shape, squares, at::scalar_tensor(false)), c10::Error);
  });
}

}  // namespace
}  // namespace dtopp::train

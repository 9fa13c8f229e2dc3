#include "dtopp/moe/activation_statistics.h"

#include <cmath>

#include <gtest/gtest.h>

namespace dtopp::moe::activation_statistics_test {
namespace {

// A layer's routing with the fields that the statistics read.
ops::RouteOutput routing(std::vector<int64_t> counts, std::vector<int64_t> histogram, int64_t tokens) {
  ops::RouteOutput layer;
  layer.gates_TE = at::zeros({tokens, static_cast<int64_t>(counts.size())});
  layer.tokens_per_expert_E = at::tensor(counts, at::kLong);
  layer.active_histogram = at::tensor(histogram, at::kLong);
  return layer;
}

ActivationStatistics statistics_of(const std::vector<ops::RouteOutput>& layers) {
  ActivationStatistics statistics(static_cast<int64_t>(layers.size()));
  statistics.add(layers);
  return statistics;
}

TEST(ActivationStatistics, summarizes_by_hand) {
  // Three tokens select 1, 2 and 3 of three experts. Expert 2 is selected once.
  const ActivationStatistics statistics = statistics_of({routing({3, 2, 1}, {0, 1, 1, 1}, 3)});
  const ActivationSummary summary = statistics.summary(0);
  EXPECT_DOUBLE_EQ(summary.mean, 2.0);
  EXPECT_DOUBLE_EQ(summary.deviation, std::sqrt(2.0 / 3.0));
  EXPECT_DOUBLE_EQ(summary.imbalance, 1.5);
  EXPECT_EQ(summary.dead_experts, 0);
  EXPECT_EQ(statistics.tokens(), 3);
  EXPECT_EQ(statistics.num_assignments().item<int64_t>(), 6);
}

TEST(ActivationStatistics, adding_micro_batches_equals_one_batch) {
  const ActivationStatistics whole =
      statistics_of({routing({5, 1, 0}, {0, 4, 1, 0}, 5), routing({2, 2, 2}, {0, 4, 1, 0}, 5)});
  ActivationStatistics parts(2);
  parts.add(statistics_of({routing({2, 1, 0}, {0, 1, 1, 0}, 2), routing({1, 1, 1}, {0, 1, 1, 0}, 2)}));
  parts.add(statistics_of({routing({3, 0, 0}, {0, 3, 0, 0}, 3), routing({1, 1, 1}, {0, 3, 0, 0}, 3)}));
  EXPECT_EQ(parts.tokens(), whole.tokens());
  EXPECT_TRUE(parts.num_assignments().equal(whole.num_assignments()));
  EXPECT_DOUBLE_EQ(parts.summary().mean, whole.summary().mean);
  EXPECT_DOUBLE_EQ(parts.summary().deviation, whole.summary().deviation);
  EXPECT_EQ(parts.summary().dead_experts, 1);
}

// Four tokens use (1, 1), (3, 1), (2, 2) and (3, 3) experts in two layers; their means are 1, 2, 2 and 3.
TEST(ActivationStatistics, tells_the_deviation_over_tokens_from_that_over_pairs) {
  const auto layer = [](const std::vector<int64_t>& used_T) {
    ops::RouteOutput routing;
    routing.gates_TE = at::zeros({4, 3});
    routing.tokens_per_expert_E = at::zeros({3}, at::kLong);
    routing.active_histogram = at::zeros({4}, at::kLong);
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t e = 0; e < used_T[static_cast<size_t>(t)]; ++e) {
        routing.gates_TE[t][e] = 1.0 / (1.0 + static_cast<double>(e));
        routing.tokens_per_expert_E[e] += 1;
      }
      routing.active_histogram[used_T[static_cast<size_t>(t)]] += 1;
    }
    return routing;
  };
  const std::vector<ops::RouteOutput> layers = {layer({1, 3, 2, 3}), layer({1, 1, 2, 3})};
  ActivationStatistics statistics(2);
  statistics.add(layers);
  EXPECT_DOUBLE_EQ(statistics.summary().mean, 2.0);
  EXPECT_DOUBLE_EQ(statistics.summary().deviation, std::sqrt(6.0 / 8));
  EXPECT_DOUBLE_EQ(statistics.token_mean_deviation(), std::sqrt(2.0 / 4));
  statistics.add(statistics_of(layers));
  EXPECT_DOUBLE_EQ(statistics.token_mean_deviation(), std::sqrt(2.0 / 4));
}

TEST(ActivationStatistics, is_empty_without_tokens) {
  const ActivationStatistics statistics(2);
  EXPECT_EQ(statistics.tokens(), 0);
  EXPECT_EQ(statistics.summary().mean, 0.0);
}

}  // namespace
}  // namespace dtopp::moe::activation_statistics_test

#include "dtopp/moe/activation_statistics.h"

#include <cmath>

#include <gtest/gtest.h>

namespace dtopp::activation_statistics_test {
namespace {

// A layer's routing as far as statistics read it.
RouteOutput routing(std::vector<int64_t> counts, std::vector<int64_t> histogram, int64_t tokens) {
  RouteOutput layer;
  layer.gates_TE = at::zeros({tokens, static_cast<int64_t>(counts.size())});
  layer.expert_counts_E = at::tensor(counts, at::kLong);
  layer.active_histogram = at::tensor(histogram, at::kLong);
  return layer;
}

ActivationStatistics statistics_of(const std::vector<RouteOutput>& layers) {
  ActivationStatistics statistics(static_cast<int64_t>(layers.size()));
  statistics.add(layers);
  return statistics;
}

TEST(ActivationStatistics, summarises_by_hand) {
  // Three tokens chose 1, 2 and 3 of three experts; expert 2 was chosen once.
  const ActivationStatistics statistics = statistics_of({routing({3, 2, 1}, {0, 1, 1, 1}, 3)});
  const ActivationSummary summary = statistics.summary(0);
  EXPECT_DOUBLE_EQ(summary.mean, 2.0);
  EXPECT_DOUBLE_EQ(summary.deviation, std::sqrt(2.0 / 3.0));
  EXPECT_DOUBLE_EQ(summary.imbalance, 1.5);
  EXPECT_EQ(summary.dead_experts, 0);
  EXPECT_EQ(statistics.tokens(), 3);
  EXPECT_EQ(statistics.selected().item<int64_t>(), 6);
}

TEST(ActivationStatistics, adding_micro_batches_equals_one_batch) {
  const ActivationStatistics whole =
      statistics_of({routing({5, 1, 0}, {0, 4, 1, 0}, 5), routing({2, 2, 2}, {0, 4, 1, 0}, 5)});
  ActivationStatistics parts(2);
  parts.add(statistics_of({routing({2, 1, 0}, {0, 1, 1, 0}, 2), routing({1, 1, 1}, {0, 1, 1, 0}, 2)}));
  parts.add(statistics_of({routing({3, 0, 0}, {0, 3, 0, 0}, 3), routing({1, 1, 1}, {0, 3, 0, 0}, 3)}));
  EXPECT_EQ(parts.tokens(), whole.tokens());
  EXPECT_TRUE(parts.selected().equal(whole.selected()));
  EXPECT_DOUBLE_EQ(parts.summary().mean, whole.summary().mean);
  EXPECT_DOUBLE_EQ(parts.summary().deviation, whole.summary().deviation);
  EXPECT_EQ(parts.summary().dead_experts, 1);
}

TEST(ActivationStatistics, is_empty_without_tokens) {
  const ActivationStatistics statistics(2);
  EXPECT_EQ(statistics.tokens(), 0);
  EXPECT_EQ(statistics.summary().mean, 0.0);
}

}  // namespace
}  // namespace dtopp::activation_statistics_test

#include "dtopp/moe/activation_statistics.h"

#include <cmath>

#include <gtest/gtest.h>

namespace dtopp {
namespace {

at::Tensor ints(std::vector<int64_t> values) { return at::tensor(values, at::kLong); }

TEST(ActivationStatistics, summarises_by_hand) {
  ActivationStatistics statistics(1);
  // Three tokens chose 1, 2 and 3 of three experts; expert 2 was chosen once.
  statistics.add(0, ints({3, 2, 1}), ints({0, 1, 1, 1}));
  const ActivationSummary summary = statistics.summary(0);
  EXPECT_DOUBLE_EQ(summary.mean, 2.0);
  EXPECT_DOUBLE_EQ(summary.deviation, std::sqrt(2.0 / 3.0));
  EXPECT_DOUBLE_EQ(summary.imbalance, 1.5);
  EXPECT_EQ(summary.dead_experts, 0);
  EXPECT_EQ(statistics.tokens(), 3);
  EXPECT_EQ(statistics.selected(), std::vector<int64_t>{6});
}

TEST(ActivationStatistics, adding_micro_batches_equals_one_batch) {
  ActivationStatistics whole(2), parts(2), part(2);
  whole.add(0, ints({5, 1, 0}), ints({0, 4, 1, 0}));
  whole.add(1, ints({2, 2, 2}), ints({0, 4, 1, 0}));
  part.add(0, ints({2, 1, 0}), ints({0, 1, 1, 0}));
  part.add(1, ints({1, 1, 1}), ints({0, 1, 1, 0}));
  parts.add(part);
  ActivationStatistics rest(2);
  rest.add(0, ints({3, 0, 0}), ints({0, 3, 0, 0}));
  rest.add(1, ints({1, 1, 1}), ints({0, 3, 0, 0}));
  parts.add(rest);
  EXPECT_EQ(parts.selected(), whole.selected());
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
}  // namespace dtopp

#include <gtest/gtest.h>

#include "dtopp/train/profile.h"
#include "tests/distributed/mirrored_collectives.h"

namespace dtopp::train {
namespace {

StepResult step_of(int64_t step, double seconds) {
  StepResult result;
  result.step = step;
  result.seconds = seconds;
  return result;
}

// 1,000 tokens of 6 MFLOP in half a second are 12 GFLOP/s.
constexpr StepYardstick kYardstick{
    .fixed_flops_per_token = 6e6, .tokens = 1000, .last_step = 10, .matrix_rate = 48e9, .peak_rate = 120e9};

TEST(StepMeter, sets_arithmetic_beside_the_data_sheets_rate) {
  const distributed::ProcessGroups groups;
  const StepRates rates = StepMeter(kYardstick, groups).rates(step_of(1, 0.5));
  EXPECT_DOUBLE_EQ(rates.tokens_per_second, 2000);
  EXPECT_DOUBLE_EQ(rates.tflops, 0.012);
  EXPECT_DOUBLE_EQ(*rates.mfu, 0.1);
  EXPECT_GT(rates.memory_peak_bytes, 0U);
}

// Each of 1,000 tokens uses both experts of one layer: 6 + 2 x 3 MFLOP per token.
TEST(StepMeter, counts_the_arithmetic_of_the_experts_that_tokens_activated) {
  const distributed::ProcessGroups groups;
  StepYardstick yardstick = kYardstick;
  yardstick.flops_per_expert = 3e6;
  StepResult result = step_of(1, 0.5);
  const auto in_f64 = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor counts = at::full({2}, 1000, in_f64), histogram = at::tensor({0, 0, 1000}, in_f64),
                   sums = at::tensor({2000, 4000}, in_f64);
  result.activations = moe::ActivationStatistics::from_vector(at::cat({sums, counts, histogram}), 1, 2, 1000);
  EXPECT_DOUBLE_EQ(StepMeter(yardstick, groups).rates(result).tflops, 0.024);
}

TEST(StepMeter, several_ranks_have_a_device_each) {
  distributed::ProcessGroups groups;
  groups.world = std::make_shared<distributed::MirroredCollectives>(0, 4);
  const StepRates rates = StepMeter(kYardstick, groups).rates(step_of(1, 0.5));
  EXPECT_DOUBLE_EQ(rates.tflops, 0.012);
  EXPECT_DOUBLE_EQ(*rates.mfu, 0.1 / 4);
}

TEST(StepMeter, knows_no_mfu_without_a_data_sheet) {
  const distributed::ProcessGroups groups;
  StepYardstick yardstick = kYardstick;
  yardstick.peak_rate.reset();
  EXPECT_FALSE(StepMeter(yardstick, groups).rates(step_of(1, 0.5)).mfu);
}

TEST(StepMeter, foretells_the_end_from_recent_steps) {
  const distributed::ProcessGroups groups;
  StepMeter meter(kYardstick, groups);
  EXPECT_DOUBLE_EQ(meter.rates(step_of(1, 0.5)).seconds_left, 9 * 0.5);
  EXPECT_DOUBLE_EQ(meter.rates(step_of(2, 1.5)).seconds_left, 8 * (0.9 * 0.5 + 0.1 * 1.5));
}

TEST(StepMeter, counts_what_was_sent_since_the_step_began) {
  distributed::ProcessGroups groups;
  const auto counts = std::make_shared<distributed::CollectiveCounts>();
  groups.traffic = counts;
  counts->started("gradients", 1000);
  StepMeter meter(kYardstick, groups);
  meter.begin();
  counts->started("gradients", 400);
  counts->arrived("gradients", 0.1);
  const StepRates rates = meter.rates(step_of(1, 0.5));
  EXPECT_EQ(rates.sent_bytes, 400);
  EXPECT_DOUBLE_EQ(*rates.exposed_share, 0.2);
}

}  // namespace
}  // namespace dtopp::train

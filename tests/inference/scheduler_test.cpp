#include "dtopp/inference/scheduler.h"

#include <thread>

#include <gtest/gtest.h>

#include "dtopp/moe/make_router.h"
#include "tests/eval/tiny_model.h"

namespace dtopp::inference {
namespace {

using enum Scheduler::Admission;
using std::chrono::milliseconds;

InferenceModel model() {
  const config::RunConfig config = eval::tiny_config();
  InferenceModel model = eval::tiny_model(config);
  model.routing.router = moe::make_router(config, at::kCPU);
  return model;
}

struct Received final : TokenReceiver {
  std::vector<size_t> sequences;
  size_t most = 1000;
  bool needed = true;

  bool receive(size_t sequence, const GeneratedToken& /*token*/) override {
    sequences.push_back(sequence);
    return sequences.size() < most;
  }
  bool is_needed() const override { return needed; }
};

SequenceInput input(int64_t prompt, int64_t max_tokens) {
  return {std::vector<int32_t>(static_cast<size_t>(prompt), 3), max_tokens};
}

TEST(Scheduler, starts_sequences_in_order_of_arrival_within_its_limits) {
  const InferenceModel loaded = model();
  // The cache holds two sequences of at most 64 tokens.
  Scheduler scheduler(loaded, {.running = 3, .waiting = 4, .cache_tokens = 191});
  const auto first = std::make_shared<Received>(), second = std::make_shared<Received>();
  EXPECT_EQ(scheduler.submit({input(10, 2), input(60, 4)}, first), kQueued);
  EXPECT_EQ(scheduler.submit({input(1, 1)}, second), kQueued);
  EXPECT_EQ(scheduler.submit({input(1, 1), input(1, 1)}, second), kFull);
  EXPECT_EQ(scheduler.load().waiting, 3);
  scheduler.step(milliseconds(0));
  EXPECT_EQ(first->sequences, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(scheduler.load().running, 2);
  EXPECT_EQ(scheduler.load().cache_tokens, 128);
  scheduler.step(milliseconds(0));  // ends sequence 0
  EXPECT_TRUE(second->sequences.empty());
  scheduler.step(milliseconds(0));
  EXPECT_EQ(second->sequences.size(), 1);
  scheduler.step(milliseconds(0));
  EXPECT_EQ(first->sequences, (std::vector<size_t>{0, 1, 0, 1, 1, 1}));
  EXPECT_EQ(scheduler.load().running, 0);
  EXPECT_EQ(scheduler.load().cache_tokens, 0);
}

TEST(Scheduler, drops_what_is_not_needed) {
  const InferenceModel loaded = model();
  Scheduler scheduler(loaded, {.running = 1, .waiting = 8, .cache_tokens = 1024});
  const auto stopped = std::make_shared<Received>(), left = std::make_shared<Received>(),
             last = std::make_shared<Received>();
  stopped->most = 2;
  scheduler.submit({input(5, 100)}, stopped);
  scheduler.submit({input(5, 100), input(5, 100)}, left);
  scheduler.submit({input(5, 100)}, last);
  scheduler.step(milliseconds(0));
  scheduler.step(milliseconds(0));
  scheduler.step(milliseconds(0));
  EXPECT_EQ(stopped->sequences.size(), 2);
  EXPECT_EQ(left->sequences.size(), 1);
  left->needed = false;
  scheduler.step(milliseconds(0));
  EXPECT_EQ(left->sequences.size(), 1);
  EXPECT_EQ(last->sequences.size(), 1);
  EXPECT_FALSE(scheduler.close_if_idle());
  last->needed = false;
  scheduler.step(milliseconds(0));
  EXPECT_TRUE(scheduler.close_if_idle());
  EXPECT_EQ(scheduler.submit({input(5, 1)}, last), kClosed);
}

TEST(Scheduler, a_sequence_that_waits_for_its_budget_lets_others_pass) {
  const InferenceModel loaded = model();
  Scheduler scheduler(loaded, {.running = 2, .waiting = 8, .cache_tokens = 1024});
  const auto budget = std::make_shared<Received>(), left = std::make_shared<Received>(),
             other = std::make_shared<Received>();
  SequenceInput waiting = input(5, 1), unneeded = input(5, 1);
  waiting.budget = 3;
  unneeded.budget = 2;
  scheduler.submit({unneeded}, left);
  scheduler.submit({waiting}, budget);
  scheduler.submit({input(5, 1)}, other);
  left->needed = false;
  EXPECT_EQ(scheduler.missing_budget(milliseconds(0)), 3);
  scheduler.step(milliseconds(0));
  EXPECT_EQ(other->sequences.size(), 1);
  EXPECT_TRUE(budget->sequences.empty());
  EXPECT_FALSE(scheduler.close_if_idle());
  scheduler.add_budget(3, loaded.routing.router);
  EXPECT_EQ(scheduler.missing_budget(milliseconds(0)), std::nullopt);
  scheduler.step(milliseconds(0));
  EXPECT_EQ(budget->sequences.size(), 1);
  EXPECT_TRUE(scheduler.close_if_idle());
}

TEST(Scheduler, begins_a_sequence_as_soon_as_its_budget_is_there) {
  const InferenceModel loaded = model();
  Scheduler scheduler(loaded, {.running = 2, .waiting = 8, .cache_tokens = 1024});
  const auto budget = std::make_shared<Received>();
  SequenceInput waiting = input(5, 1);
  waiting.budget = 3;
  std::thread solving([&] {
    EXPECT_EQ(scheduler.missing_budget(milliseconds(60'000)), 3);
    scheduler.add_budget(3, loaded.routing.router);
  });
  scheduler.submit({waiting}, budget);
  scheduler.step(milliseconds(60'000));
  solving.join();
  EXPECT_EQ(budget->sequences.size(), 1);
}

}  // namespace
}  // namespace dtopp::inference

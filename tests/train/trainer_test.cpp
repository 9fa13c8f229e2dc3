#include "dtopp/train/trainer.h"

#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/format.h"
#include "dtopp/models/make_model.h"
#include "dtopp/moe/make_router.h"
#include "tiny_model.h"

namespace dtopp::train {
namespace {

double loss_named(const StepResult& result, std::string_view name) {
  return std::ranges::find(result.losses, name, [](const auto& loss) { return std::string_view(loss.first); })
      ->second;
}

// The router's state as numbers.
std::map<std::string, std::vector<double>> router_state(const Trainer& trainer) {
  std::map<std::string, std::vector<double>> state;
  for (const auto& [name, tensor] : trainer.routing().router->state()) {
    const at::Tensor values = tensor.to(at::kDouble).reshape({-1});
    state[name] = {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
  }
  return state;
}

TEST(Trainer, gradients_do_not_depend_on_the_micro_batch_size) {
  config::RunConfig config = tiny();
  config.loss.load_balance = 0;  // the only term that depends on the micro-batch
  Trainer two = trainer_of(config);
  config.training.micro_batch_size = 4;
  Trainer four = trainer_of(config);
  two.initialize();
  four.initialize();
  for (int n = 0; n < 3; ++n) {
    const StepResult a = step(two);
    const StepResult b = step(four);
    EXPECT_NEAR(a.loss, b.loss, 1e-5);
    EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-4 * b.grad_norm);
    EXPECT_TRUE(a.activations.num_assignments().equal(b.activations.num_assignments()));
  }
}

// Issues two steps before it reads their results, as on a device that computes asynchronously.
std::vector<StepResult> results_of(Trainer& trainer, int64_t steps) {
  std::vector<StepResult> results;
  while (trainer.state().step < steps) {
    EXPECT_TRUE(trainer.step(never));
    EXPECT_TRUE(trainer.step(never));
    while (auto result = trainer.next_result(0)) results.push_back(*result);
  }
  return results;
}

TEST(Trainer, steps_without_room_for_their_pairs_run_again_and_leave_no_trace) {
  const config::RunConfig config = tiny();
  Trainer exact = trainer_of(config);
  exact.initialize();
  const auto expected = results_of(exact, 6);
  for (const double margin : {0.5, 2.0}) {
    Trainer limited = trainer_of(config);
    limited.initialize();
    limited.predict_capacity(margin);
    const auto results = results_of(limited, 6);
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].step, expected[i].step);
      EXPECT_EQ(results[i].tokens, expected[i].tokens);
      EXPECT_EQ(results[i].loss, expected[i].loss);
      EXPECT_EQ(results[i].router, expected[i].router);
      EXPECT_FALSE(results[i].skipped);
    }
    EXPECT_EQ(distance(limited, exact), 0);
    EXPECT_EQ(limited.state().sample_position, exact.state().sample_position);
    EXPECT_EQ(router_state(limited), router_state(exact));
    EXPECT_EQ(limited.state().skipped_steps, 0);
  }
}

TEST(Trainer, global_batch_statistics_are_those_of_the_last_step) {
  config::RunConfig config = tiny();
  config.loss.batch_statistics = config::BatchStatistics::kGlobal;
  config.optimizer.lr = 0;  // keeps the parameters, so that the second step can be recomputed
  Trainer trainer = trainer_of(config);
  trainer.initialize();
  const StepResult first = step(trainer);
  const auto load = [&](config::RunConfig with, const ops::NamedTensors& state) {
    std::shared_ptr<moe::Router> router = moe::make_router(with, at::kCPU);
    router->load_state(state);
    return moe::Routing{router};
  };
  const ops::NamedTensors state = trainer.routing().router->state();
  const StepResult second = step(trainer);
  const models::LossFunction losses =
      trainer.model().bind([&](const std::string& name) { return trainer.parameters().model_param(name); });
  const auto balance = [&](const moe::Routing& given, uint64_t position) {
    double sum = 0;
    for (const uint64_t micro_batch : {position, position + 2})
      sum += losses(trainer.data().training->read(micro_batch, 2), given)
                 .value("load_balance_loss")
                 .item<double>();
    return sum / 2;
  };
  EXPECT_TRUE(
      ops::find_tensor(state, "tokens_per_expert_LE", "state").equal(first.activations.tokens_per_expert()));
  const double of_last_step = balance(load(config, state), 4);
  EXPECT_NEAR(loss_named(second, "load_balance_loss"), of_last_step, 1e-6);
  ops::NamedTensors own = state;
  std::erase_if(own, [](const auto& tensor) { return tensor.first == "tokens_per_expert_LE"; });
  config.loss.batch_statistics = config::BatchStatistics::kMicroBatch;
  EXPECT_NE(of_last_step, balance(load(config, own), 4));
  // The first step has no preceding step.
  const moe::Routing fresh = {moe::make_router(config, at::kCPU)};
  EXPECT_NEAR(loss_named(first, "load_balance_loss"), balance(fresh, 0), 1e-6);
}

TEST(Trainer, controller_counts_every_micro_batch_and_layer_exactly) {
  const config::RunConfig config = tiny();
  Trainer trainer = trainer_of(config);
  trainer.initialize();
  for (int n = 0; n < 4; ++n) {
    const double p = router_state(trainer)["threshold_C"][0];
    const double sum = router_state(trainer)["error_sum_C"][0];
    const StepResult result = step(trainer);
    EXPECT_EQ(result.router_values("threshold")->at(0), p);
    int64_t selected = 0;
    for (int64_t layer = 0; layer < 2; ++layer)
      selected += result.activations.tokens_per_expert()[layer].sum().item<int64_t>();
    const double error = (3.0 - static_cast<double>(selected) / (4.0 * 12 * 2)) / 8;
    EXPECT_NEAR(router_state(trainer)["error_sum_C"][0], sum + error, 1e-15);
    EXPECT_NEAR(router_state(trainer)["threshold_C"][0], 0.25 + 0.1 * error + 0.1 * (sum + error), 1e-15);
  }
}

TEST(Trainer, a_step_that_is_stopped_has_not_happened) {
  const config::RunConfig config = tiny();
  std::atomic<bool> requested = false;
  models::TrainingData data = data_for(config);
  data.training = dataset_of([&, all = data.training](uint64_t position, int64_t count) {
    requested = true;  // during the first of two micro-batches
    return all->read(position, count);
  });
  Trainer stopped(config, models::make_model(config), std::move(data), at::kFloat);
  Trainer plain = trainer_of(config);
  stopped.initialize();
  plain.initialize();
  EXPECT_FALSE(stopped.step(StopToken(requested)));
  EXPECT_EQ(stopped.state(), plain.state());
  EXPECT_EQ(router_state(stopped), router_state(plain));
  EXPECT_FALSE(stopped.next_result(0));
  step(stopped);
  step(plain);
  EXPECT_EQ(distance(stopped, plain), 0);
  EXPECT_EQ(stopped.state(), plain.state());
  EXPECT_EQ(router_state(stopped), router_state(plain));
}

// The model with its total loss multiplied by `factor`, which may change during training.
models::Model poisoned_model(const config::RunConfig& config, const double& factor) {
  models::Model model = models::make_model(config);
  model.bind = [&factor,
                bind = model.bind](const models::ParameterLookup& parameter) -> models::LossFunction {
    return [&factor, losses = bind(parameter)](const models::Batch& batch, const moe::Routing& inputs) {
      models::BatchLosses result = losses(batch, inputs);
      result.total = result.total * factor;
      return result;
    };
  };
  return model;
}

TEST(Trainer, a_non_finite_step_changes_nothing_but_the_position) {
  const config::RunConfig config = tiny();
  for (const double poison :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    double factor = 1;
    Trainer trainer(config, poisoned_model(config, factor), data_for(config), at::kFloat);
    Trainer plain = trainer_of(config);
    trainer.initialize();
    plain.initialize();
    step(trainer);
    step(plain);
    factor = poison;
    const StepResult result = step(trainer);
    factor = 1;
    EXPECT_TRUE(result.skipped);
    EXPECT_EQ(distance(trainer, plain), 0);
    EXPECT_EQ(router_state(trainer), router_state(plain));
    EXPECT_EQ(trainer.state().skipped_steps, 1);
    EXPECT_EQ(trainer.state().sample_position, plain.state().sample_position + 4);
    EXPECT_EQ(result.consecutive_skips, 1);
    EXPECT_FALSE(step(trainer).skipped);
    EXPECT_EQ(trainer.state().consecutive_skips, 0);
    EXPECT_TRUE(std::isfinite(step(trainer).loss));
  }
}

// The device lags behind: two steps are issued before the first one's results are read.
TEST(Trainer, results_read_late_are_the_same) {
  const config::RunConfig config = tiny();
  double factor = 1;
  Trainer late(config, poisoned_model(config, factor), data_for(config), at::kFloat);
  Trainer prompt(config, poisoned_model(config, factor), data_for(config), at::kFloat);
  late.initialize();
  prompt.initialize();
  for (int pair = 0; pair < 3; ++pair) {
    std::vector<StepResult> expected;
    for (const bool first : {true, false}) {
      factor = pair == 1 && first ? std::numeric_limits<double>::infinity() : 1;
      expected.push_back(step(prompt));
      EXPECT_TRUE(late.step(never));
    }
    for (const StepResult& result : expected) {
      const StepResult same = late.next_result(0).value();
      EXPECT_EQ(same.step, result.step);
      EXPECT_EQ(same.tokens, result.tokens);
      EXPECT_EQ(same.skipped, result.skipped);
      EXPECT_EQ(same.skipped_steps, result.skipped_steps);
      EXPECT_EQ(same.consecutive_skips, result.consecutive_skips);
      EXPECT_THAT(same.grad_norm, ::testing::NanSensitiveDoubleEq(result.grad_norm));
      EXPECT_EQ(same.router, result.router);
      EXPECT_EQ(same.scales, result.scales);
      EXPECT_TRUE(same.activations.histogram().equal(result.activations.histogram()));
    }
    EXPECT_FALSE(late.next_result(0));
  }
  EXPECT_EQ(late.state(), prompt.state());
  EXPECT_EQ(router_state(late), router_state(prompt));
  EXPECT_EQ(late.state().skipped_steps, 1);
  EXPECT_EQ(distance(late, prompt), 0);
}

TEST(TrainerSlow, learns_to_repeat_a_small_batch) {
  for (const std::string_view name : config::enum_names(config::RoutingMethod())) {
    SCOPED_TRACE(name);
    const auto method = enum_named<config::RoutingMethod>(name).value();
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      config::RunConfig config = tiny();
      config.routing.method = method;
      config.routing.experts = {3};
      config.training.steps = 60;
      models::TrainingData data = data_for(config);
      data.training =
          dataset_of([all = data.training](uint64_t, int64_t count) { return all->read(0, count); });
      Trainer trainer(config, models::make_model(config), data, type);
      trainer.initialize();
      const double first = loss_named(step(trainer), "lm_loss");
      double last = 0;
      for (int n = 1; n < 60; ++n) last = loss_named(step(trainer), "lm_loss");
      EXPECT_NEAR(first, std::log(64.0), 0.1);
      EXPECT_LT(last, 0.5 * first);
    }
  }
}

TEST(Trainer, clips_the_global_norm) {
  config::RunConfig config = tiny();
  config.optimizer.grad_clip = 0.1;
  config.optimizer.eps = 10.0;  // makes AdamW's first step proportional to the gradient
  config.optimizer.lr = 1.0;
  config.optimizer.weight_decay = 0;
  Trainer clipped = trainer_of(config);
  config.optimizer.grad_clip = 0;
  Trainer free = trainer_of(config);
  clipped.initialize();
  free.initialize();
  const at::Tensor start = free.parameters().main_param("model.embed_tokens.weight").clone();
  const double norm = step(clipped).grad_norm;
  step(free);
  ASSERT_GT(norm, 0.5);
  const at::Tensor moved_free = free.parameters().main_param("model.embed_tokens.weight") - start;
  const at::Tensor moved_clipped = clipped.parameters().main_param("model.embed_tokens.weight") - start;
  const double ratio = (moved_clipped.norm() / moved_free.norm()).item<double>();
  EXPECT_NEAR(ratio, 0.1 / norm, 0.02 * 0.1 / norm);
}

}  // namespace
}  // namespace dtopp::train

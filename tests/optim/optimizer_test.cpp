#include "dtopp/optim/optimizer.h"

#include <limits>

#include <gtest/gtest.h>

#include "dtopp/base/format.h"

namespace dtopp::optim {
namespace {

config::OptimizerConfig optimizer(config::Schedule schedule = config::Schedule::kCosine) {
  config::OptimizerConfig config;
  config.lr = 3e-3;
  config.min_lr = 3e-5;
  config.schedule = schedule;
  config.warmup_steps = 100;
  config.decay_steps = 200;
  return config;
}

TEST(Schedule, all_warm_up_linearly_from_zero) {
  for (const std::string_view name : config::enum_names(config::Schedule{})) {
    SCOPED_TRACE(name);
    const auto schedule = enum_named<config::Schedule>(name).value();
    EXPECT_DOUBLE_EQ(learning_rate(optimizer(schedule), 1, 1000), 3e-5);
    EXPECT_DOUBLE_EQ(learning_rate(optimizer(schedule), 50, 1000), 1.5e-3);
    EXPECT_DOUBLE_EQ(learning_rate(optimizer(schedule), 100, 1000), 3e-3);
  }
}

TEST(Schedule, cosine_falls_to_min_lr_at_the_last_step) {
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), 550, 1000), (3e-3 + 3e-5) / 2);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(), 1000, 1000), 3e-5);
}

TEST(Schedule, cosine_works_without_warm_up) {
  config::OptimizerConfig config = optimizer();
  config.warmup_steps = 0;
  EXPECT_NEAR(learning_rate(config, 1, 1000), 3e-3, 1e-7);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1000, 1000), 3e-5);
}

TEST(Schedule, linear_falls_along_a_line_from_the_end_of_warm_up) {
  const config::OptimizerConfig config = optimizer(config::Schedule::kLinear);
  EXPECT_DOUBLE_EQ(learning_rate(config, 400, 1000), 3e-3 - (3e-3 - 3e-5) / 3);
  EXPECT_DOUBLE_EQ(learning_rate(config, 550, 1000), (3e-3 + 3e-5) / 2);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1000, 1000), 3e-5);
}

TEST(Schedule, constant_stays_at_the_peak) {
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(config::Schedule::kConstant), 101, 1000), 3e-3);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer(config::Schedule::kConstant), 1000, 1000), 3e-3);
}

TEST(Schedule, wsd_stays_and_falls_along_a_line_in_the_last_steps) {
  const config::OptimizerConfig config = optimizer(config::Schedule::kWsd);
  EXPECT_EQ(learning_rate(config, 101, 1000), 3e-3);
  EXPECT_EQ(learning_rate(config, 800, 1000), 3e-3);
  EXPECT_DOUBLE_EQ(learning_rate(config, 801, 1000), 3e-3 - (3e-3 - 3e-5) / 200);
  EXPECT_DOUBLE_EQ(learning_rate(config, 900, 1000), (3e-3 + 3e-5) / 2);
  EXPECT_DOUBLE_EQ(learning_rate(config, 1000, 1000), 3e-5);
}

TEST(Schedule, wsd_is_constant_until_its_decay_to_the_bit) {
  for (int64_t step = 1; step <= 800; ++step)
    EXPECT_EQ(learning_rate(optimizer(config::Schedule::kWsd), step, 1000),
              learning_rate(optimizer(config::Schedule::kConstant), step, 5000));
}

TEST(Schedule, wsd_may_decay_from_the_end_of_warm_up) {
  config::OptimizerConfig config = optimizer(config::Schedule::kWsd);
  config.decay_steps = 900;
  for (const int64_t step : {99, 100, 101, 550, 1000})
    EXPECT_DOUBLE_EQ(learning_rate(config, step, 1000),
                     learning_rate(optimizer(config::Schedule::kLinear), step, 1000));
}

TEST(Schedule, gives_routers_their_own_factor_and_warm_up) {
  config::OptimizerConfig config = optimizer(config::Schedule::kConstant);
  config.router_lr_factor = 0.1;
  EXPECT_DOUBLE_EQ(learning_rates(config, 50, 1000).lr, 1.5e-3);
  EXPECT_DOUBLE_EQ(learning_rates(config, 50, 1000).router, 1.5e-4);
  config.router_warmup_steps = 400;
  EXPECT_DOUBLE_EQ(learning_rates(config, 200, 1000).lr, 3e-3);
  EXPECT_DOUBLE_EQ(learning_rates(config, 200, 1000).router, 1.5e-4);
  EXPECT_DOUBLE_EQ(learning_rates(config, 400, 1000).router, 3e-4);
  EXPECT_DOUBLE_EQ(learning_rates(config, 1000, 1000).router, 3e-4);
}

config::OptimizerConfig muon() {
  config::OptimizerConfig config;
  config.method = config::OptimizerMethod::kMuon;
  return config;
}

// A parameter with its gradient, on one rank.
struct Trained {
  Trained(parameters::ParameterSpec of, const at::Tensor& value, const at::Tensor& gradient)
      : spec(std::move(of)), shard{&spec, value.flatten().clone(), gradient.flatten().clone(), {}, {}} {
    for (size_t i = 0; i < make_optimizer(muon())->slots(spec).size(); ++i)
      shard.slots.push_back(at::zeros_like(shard.main_param));
    shard.updates = {{0, shard.main_param.numel()}};
  }
  void step(bool applied = true) {
    shard.spec = &spec;
    make_optimizer(muon())->step(
        std::span(&shard, 1),
        {{0.1, 0.1}, at::ones({}), at::scalar_tensor(applied, at::kBool), at::ones({})});
  }

  parameters::ParameterSpec spec;
  ParameterShard shard;
};

parameters::ParameterSpec spec_of(std::vector<int64_t> shape, parameters::ParameterRole role,
                                  int64_t stacked = 1) {
  return {"one", std::move(shape), {}, role, stacked};
}

TEST(Muon, updates_gate_and_up_and_every_expert_by_themselves) {
  using enum parameters::ParameterRole;
  const at::Tensor values = at::randn({3, 14, 37}),
                   gradients = at::randn({3, 14, 37}) * at::tensor({1.0F, 9.0F, 0.1F}).view({3, 1, 1});
  Trained experts(spec_of({3, 14, 37}, kExpert, 2), values, gradients);
  experts.step();
  for (int64_t expert = 0; expert < 3; ++expert) {
    for (int64_t half = 0; half < 2; ++half) {
      const auto part = [&](const at::Tensor& x) {
        return x.view({3, 14, 37})[expert].narrow(0, 7 * half, 7);
      };
      Trained alone(spec_of({7, 37}, kMatrix), part(values), part(gradients));
      alone.step();
      EXPECT_TRUE(alone.shard.main_param.view({7, 37}).equal(part(experts.shard.main_param)))
          << expert << half;
      EXPECT_TRUE(alone.shard.slots[0].view({7, 37}).equal(part(experts.shard.slots[0]))) << expert << half;
    }
  }
}

TEST(Muon, leaves_embeddings_vectors_and_the_output_to_adamw) {
  using enum parameters::ParameterRole;
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(muon()), adamw = make_optimizer({});
  for (const auto& spec :
       {spec_of({9, 6}, kLookUp), spec_of({9, 6}, kTiedLookUp), spec_of({9, 6}, kOuterMatrix),
        spec_of({9, 6}, kRouter), spec_of({}, kRouterScale), spec_of({6}, kGain), spec_of({1, 6}, kMatrix)}) {
    EXPECT_EQ(optimizer->slots(spec), adamw->slots(spec));
    EXPECT_EQ(optimizer->shard_policy(spec), distributed::ShardPolicy::kElements);
    EXPECT_EQ(optimizer->flops(spec), 0);
  }
  EXPECT_EQ(optimizer->slots(spec_of({9, 6}, kMatrix)).size(), 1);
}

TEST(Muon, changes_nothing_in_a_step_that_is_not_applied) {
  for (const float bad :
       {1.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Trained matrix(spec_of({5, 4}, parameters::ParameterRole::kMatrix), at::randn({5, 4}),
                   at::full({5, 4}, bad));
    const at::Tensor before = matrix.shard.main_param.clone();
    matrix.step(/*applied=*/false);
    EXPECT_TRUE(matrix.shard.main_param.equal(before));
    EXPECT_TRUE(matrix.shard.slots[0].equal(at::zeros({20})));
  }
}

}  // namespace

}  // namespace dtopp::optim

#include <gtest/gtest.h>

#include "dtopp/moe/make_router.h"

namespace dtopp::moe::dtop_p_bias_test {
namespace {

config::RunConfig config_of(config::RoutingMethod method, int64_t experts = 16) {
  config::RunConfig config;
  config.model.num_layers = 1;
  config.model.num_experts = experts;
  config.routing.method = method;
  config.routing.experts = {static_cast<double>(std::min<int64_t>(experts, 4))};
  config.routing.threshold = 0.35;
  config.routing.bias_rate = 0.01;
  return config;
}

constexpr auto kPlain = config::RoutingMethod::kDTopP, kBiased = config::RoutingMethod::kDTopPBias;

void set_bias(Router& router, const at::Tensor& bias_LE) {
  ops::NamedTensors state = router.state();
  for (auto& [name, value] : state)
    if (name == "bias_LE") value = bias_LE;
  router.load_state(state);
}

at::Tensor experts_per_token(Router& router, const at::Tensor& z_TE) {
  return router.select({0, z_TE, at::full({}, 1.2)}).gates_TE.ne(0).sum(1);
}

TEST(DTopPBias, without_a_bias_has_the_bits_of_dtop_p) {
  for (const int64_t experts : {1, 8, 33, 64, 512}) {
    for (const int64_t limit : {0, 1}) {
      config::RunConfig config = config_of(kBiased, experts);
      config.routing.max_experts = limit;
      const auto biased = make_router(config, at::kCPU);
      config.routing.method = kPlain;
      const auto plain = make_router(config, at::kCPU);
      const RouterInput input = {0, at::randn({300, experts}), at::full({}, 1.2)};
      const ops::RouteOutput a = biased->select(input), b = plain->select(input);
      EXPECT_TRUE(a.gates_TE.equal(b.gates_TE));
      EXPECT_TRUE(a.tokens_per_expert_E.equal(b.tokens_per_expert_E));
      EXPECT_TRUE(a.active_histogram.equal(b.active_histogram));
    }
  }
}

TEST(DTopPBias, the_bias_decides_which_experts_and_not_how_many) {
  const auto biased = make_router(config_of(kBiased), at::kCPU),
             plain = make_router(config_of(kPlain), at::kCPU);
  set_bias(*biased, at::randn({1, 16}, at::kDouble));
  const at::Tensor z_TE = at::randn({400, 16});
  const at::Tensor count_T = experts_per_token(*plain, z_TE);
  EXPECT_TRUE(experts_per_token(*biased, z_TE).equal(count_T));
  EXPECT_GT(count_T.max().item<int64_t>(), count_T.min().item<int64_t>());
  EXPECT_FALSE(biased->select({0, z_TE, at::ones({})})
                   .tokens_per_expert_E.equal(plain->select({0, z_TE, at::ones({})}).tokens_per_expert_E));
}

TEST(DTopPBias, a_token_with_one_expert_takes_the_largest_sum_with_gate_one) {
  config::RunConfig config = config_of(kBiased);
  config.routing.max_experts = 1;
  config.routing.normalization = config::Normalization::kNone;
  const auto router = make_router(config, at::kCPU);
  const at::Tensor bias_LE = at::randn({1, 16}, at::kDouble), z_TE = at::randn({100, 16});
  set_bias(*router, bias_LE);
  const at::Tensor gates_TE = router->select({0, z_TE, at::ones({})}).gates_TE;
  EXPECT_TRUE(gates_TE.argmax(1).equal((z_TE + bias_LE[0]).argmax(1)));
  EXPECT_TRUE(std::get<0>(gates_TE.max(1)).equal(at::ones({100})));
}

TEST(DTopPBias, reports_the_probability_that_balance_costs) {
  config::RunConfig config = config_of(kBiased);
  config.routing.normalization = config::Normalization::kNone;
  config.model.sequence_length = 1;
  const auto router = make_router(config, at::kCPU);
  set_bias(*router, at::randn({1, 16}, at::kDouble));
  const at::Tensor z_TE = at::randn({200, 16});
  const ops::RouteOutput out = router->select({0, z_TE, at::ones({}), /*training=*/true});
  router->update({out.tokens_per_expert_E.view({1, -1}), 200, out.statistics.view({1, -1})},
                 at::full({}, true, at::kBool));
  const at::Tensor prob_TE = z_TE.to(at::kDouble).softmax(1), map_TE = out.gates_TE.ne(0);
  const at::Tensor up_to_TE = std::get<0>(prob_TE.sort(1, /*descending=*/true)).cumsum(1);
  const at::Tensor likeliest_T1 = up_to_TE.gather(1, map_TE.sum(1, /*keepdim=*/true) - 1);
  EXPECT_NEAR(router->metric("mass")[0], (prob_TE * map_TE).sum(1).mean().item<double>(), 1e-6);
  EXPECT_NEAR(router->metric("mass_unbiased")[0], likeliest_T1.mean().item<double>(), 1e-6);
  EXPECT_LT(router->metric("mass")[0], router->metric("mass_unbiased")[0] - 0.01);
}

// 32 experts whose logits have different means: an imbalance of 5.3 at first.
TEST(DTopPBias, evens_the_load_and_holds_the_target) {
  config::RunConfig config = config_of(kBiased, 32);
  config.routing.normalization = config::Normalization::kNone;
  config.routing.controller = config::Controller::kSolve;
  config.model.sequence_length = 1;
  config.training.global_batch_size = 1024;
  const auto router = make_router(config, at::kCPU);
  at::manual_seed(1);
  const at::Tensor offset_E = at::randn({32}) * 0.7;
  double experts = 0;
  const auto imbalance = [&] {
    const ops::RouteOutput output =
        router->select({0, at::randn({1024, 32}) + offset_E, at::ones({}), /*training=*/true});
    const at::Tensor& counts_E = output.tokens_per_expert_E;
    router->update({counts_E.view({1, -1}), 1024, output.statistics.view({1, -1})},
                   at::full({}, true, at::kBool));
    experts = counts_E.sum().item<double>() / 1024;
    return counts_E.max().item<double>() / counts_E.to(at::kDouble).mean().item<double>();
  };
  EXPECT_GT(imbalance(), 3);
  double mean = 0;
  for (int step = 0; step < 400; ++step) {
    imbalance();
    if (step >= 300) mean += experts / 100;
  }
  EXPECT_LT(imbalance(), 1.2);
  EXPECT_NEAR(mean, 4, 0.02);
}

}  // namespace
}  // namespace dtopp::moe::dtop_p_bias_test

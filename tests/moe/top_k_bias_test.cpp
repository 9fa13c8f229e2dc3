#include <gtest/gtest.h>

#include "dtopp/moe/make_router.h"

namespace dtopp::moe::top_k_bias_test {
namespace {

config::RunConfig config_of(int64_t experts = 8, double k = 3) {
  config::RunConfig config;
  config.model.num_layers = 2;
  config.model.num_experts = experts;
  config.routing.method = config::RoutingMethod::kTopKBias;
  config.routing.experts = {k};
  config.routing.normalization = config::Normalization::kNone;
  return config;
}

at::Tensor applied(bool value) { return at::full({}, value, at::kBool); }

TEST(TopKBias, without_a_bias_selects_what_top_k_selects) {
  config::RunConfig config = config_of();
  const auto with_bias = make_router(config, at::kCPU);
  config.routing.method = config::RoutingMethod::kTopK;
  const auto top_k = make_router(config, at::kCPU);
  const RouterInput input = {0, at::randn({50, 8}), at::full({}, 1.5)};
  EXPECT_TRUE(with_bias->select(input).gates_TE.ne(0).equal(top_k->select(input).gates_TE.ne(0)));
}

TEST(TopKBias, gates_do_not_contain_the_bias) {
  const auto router = make_router(config_of(8, 8), at::kCPU);
  const RouterInput input = {1, at::randn({50, 8}), at::ones({})};
  const at::Tensor before_TE = router->select(input).gates_TE;
  router->load_state({{"bias_LE", at::randn({2, 8}, at::kDouble)}});
  EXPECT_TRUE(router->select(input).gates_TE.allclose(before_TE, 1e-6, 0));
}

TEST(TopKBias, moves_by_the_rate_towards_an_equal_load) {
  const auto router = make_router(config_of(4, 1), at::kCPU);
  const StepCounts counts = {at::tensor({4, 8, 2, 2, 4, 4, 4, 4}, at::kLong).view({2, 4}), 16, {}};
  router->update(counts, applied(false));
  EXPECT_TRUE(router->state()[0].second.eq(0).all().item<bool>());
  router->update(counts, applied(true));
  const at::Tensor expected =
      at::tensor({0.0, -1e-3, 1e-3, 1e-3, 0.0, 0.0, 0.0, 0.0}, at::kDouble).view({2, 4});
  EXPECT_TRUE(router->state()[0].second.equal(expected));
}

// 32 experts whose logits have different means: an imbalance of 4.9 at first.
TEST(TopKBias, evens_the_load_of_a_fixed_router) {
  config::RunConfig config = config_of(32, 4);
  config.model.num_layers = 1;
  config.routing.bias_rate = 0.002;
  const auto router = make_router(config, at::kCPU);
  at::manual_seed(1);
  const at::Tensor offset_E = at::randn({32}) * 0.7;
  const auto imbalance = [&](bool update) {
    const ops::RouteOutput output = router->select({0, at::randn({1024, 32}) + offset_E, at::ones({})});
    const at::Tensor& counts_E = output.tokens_per_expert_E;
    if (update) router->update({counts_E.view({1, -1}), 1024, {}}, applied(true));
    return counts_E.max().item<double>() / counts_E.to(at::kDouble).mean().item<double>();
  };
  EXPECT_GT(imbalance(false), 3);
  for (int step = 0; step < 1000; ++step) imbalance(true);
  EXPECT_LT(imbalance(false), 1.2);
}

TEST(TopKBias, gates_sum_to_the_gate_scale) {
  config::RunConfig config = config_of();
  const auto plain = make_router(config, at::kCPU);
  config.routing.gate_scale = 2.5;
  const auto scaled = make_router(config, at::kCPU);
  const RouterInput input = {0, at::randn({50, 8}), at::ones({})};
  const at::Tensor gates_TE = scaled->select(input).gates_TE;
  EXPECT_TRUE(gates_TE.equal(plain->select(input).gates_TE * 2.5));
  EXPECT_TRUE(gates_TE.sum(1).allclose(at::full({50}, 2.5)));
}

TEST(TopKBias, biases_stay_after_their_share_of_the_steps) {
  config::RunConfig config = config_of(4, 1);
  config.training.steps = 10;
  config.routing.bias_until = 0.5;
  const auto router = make_router(config, at::kCPU);
  const StepCounts counts = {at::tensor({9, 0, 0, 0, 9, 0, 0, 0}, at::kLong).view({2, 4}), 9, {}};
  const auto first_bias = [&](int64_t step) {
    router->set_step(step);
    router->update(counts, applied(true));
    return router->state()[0].second[0][0].item<double>();
  };
  EXPECT_DOUBLE_EQ(first_bias(0), -1e-3);
  EXPECT_DOUBLE_EQ(first_bias(4), -2e-3);
  EXPECT_DOUBLE_EQ(first_bias(5), -2e-3);
  EXPECT_DOUBLE_EQ(first_bias(9), -2e-3);
}

TEST(TopKBias, balances_each_sequence_as_its_equation) {
  config::RunConfig config = config_of(8, 3);
  config.model.sequence_length = 5;
  config.loss.sequence_balance = 1e-4;
  const auto router = make_router(config, at::kCPU);
  at::Tensor z_TE = at::randn({20, 8}).requires_grad_();
  const ops::RouteOutput output = router->select({0, z_TE, at::ones({}), /*training=*/true});
  const at::Tensor exact_TE = z_TE.detach().to(at::kDouble).requires_grad_();
  const at::Tensor score_TE = exact_TE.sigmoid(), map_TE = output.gates_TE.ne(0).to(at::kDouble);
  at::Tensor expected = at::zeros({}, at::kDouble);
  for (int64_t first = 0; first < 20; first += 5) {
    const at::Tensor prob_LE = score_TE.narrow(0, first, 5) / score_TE.narrow(0, first, 5).sum(1, true);
    const at::Tensor share_E = map_TE.narrow(0, first, 5).sum(0) * (8.0 / (3 * 5));
    expected = expected + (share_E * prob_LE.mean(0)).sum() / 4;
  }
  EXPECT_NEAR(output.sequence_balance.item<double>(), expected.item<double>(), 1e-6);
  output.sequence_balance.backward();
  expected.backward();
  EXPECT_TRUE(z_TE.grad().to(at::kDouble).allclose(exact_TE.grad(), 1e-4, 1e-7));
  EXPECT_FALSE(router->select({0, z_TE, at::ones({})}).sequence_balance.defined());
}

TEST(TopKBias, refuses_a_rate_that_is_not_positive) {
  config::RunConfig config = config_of();
  config.routing.bias_rate = 0;
  EXPECT_ANY_THROW(make_router(config, at::kCPU));
}

}  // namespace
}  // namespace dtopp::moe::top_k_bias_test

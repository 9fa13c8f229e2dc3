// Tests routers over experts and zero experts, and the layer behind them.
#include <cmath>

#include <gtest/gtest.h>

#include <torch/csrc/autograd/autograd.h>

#include "dtopp/moe/expert_layer.h"
#include "dtopp/moe/make_router.h"
#include "dtopp/moe/solving.h"
#include "dtopp/ops/route/cumulative_prob_bins.h"

namespace dtopp::moe {
namespace {

config::RunConfig zero_config(config::RoutingMethod method, int64_t experts, int64_t zero_experts,
                              double target, int64_t most = 0) {
  config::RunConfig config;
  config.model.num_layers = 1;
  config.model.sequence_length = 8;
  config.model.num_experts = experts;
  config.model.zero_experts = zero_experts;
  config.routing.method = method;
  config.routing.experts = {target};
  config.routing.max_experts = most;
  config.routing.normalization = config::Normalization::kNone;
  return config;
}

const auto kTopKBias = config::RoutingMethod::kTopKBias, kDTopP = config::RoutingMethod::kDTopP;

// The layer's weights for logits that equal x: hidden size = columns of the router.
ExpertLayerWeights identity_router(const config::RunConfig& config) {
  const int64_t C = config.model.router_columns(), E = config.model.num_experts;
  return {at::eye(C).requires_grad_(),
          {},
          at::randn({E, 6, C}).requires_grad_(),
          at::randn({E, C, 3}).requires_grad_()};
}

at::Tensor gradient_of(const at::Tensor& y_TD, const at::Tensor& x_TD, const at::Tensor& grad_TD) {
  return torch::autograd::grad({y_TD}, {x_TD}, {grad_TD})[0];
}

TEST(TopKZero, gates_count_zero_experts_and_biases_choose_only) {
  const auto router = make_router(zero_config(kTopKBias, 6, 3, 2, 4), at::kCPU);
  const at::Tensor bias_LE = at::randn({1, 6}, at::kDouble) * 0.2;
  router->load_state({{"bias_LE", bias_LE}});
  const at::Tensor z_TC = at::randn({50, 9}).requires_grad_(), grad_TC = at::randn({50, 9});
  const ops::RouteOutput output = router->select({0, z_TC, at::ones({})});

  const at::Tensor reference_TC = z_TC.detach().requires_grad_();
  const at::Tensor p_TC = reference_TC.softmax(1);
  const at::Tensor bias_C = at::cat({bias_LE[0], at::zeros({3}, at::kDouble)}).to(at::kFloat);
  const at::Tensor chosen = std::get<1>((p_TC + bias_C).detach().topk(4, 1));
  const at::Tensor kept_TC = p_TC * at::zeros({50, 9}).scatter(1, chosen, 1.0);
  const at::Tensor gates_TC = kept_TC / kept_TC.sum(1, true);
  EXPECT_TRUE(output.gates_TE.allclose(gates_TC, 1e-5, 1e-6));
  output.gates_TE.backward(grad_TC);
  gates_TC.backward(grad_TC);
  EXPECT_TRUE(z_TC.grad().allclose(reference_TC.grad(), 1e-4, 1e-6));
}

TEST(TopKZero, moves_each_bias_by_the_error_of_the_load) {
  config::RunConfig config = zero_config(kTopKBias, 4, 2, 2, 3);
  config.routing.bias_rate = 0.5;
  const auto router = make_router(config, at::kCPU);
  const StepCounts counts = {at::tensor({4, 8, 0, 4}, at::kLong).view({1, 4}), 8, {}};
  router->update(counts, at::zeros({}, at::kBool));
  EXPECT_TRUE(router->state()[0].second.eq(0).all().item<bool>());
  router->update(counts, at::ones({}, at::kBool));
  // 0.5 (2 / 4 - c / 8)
  EXPECT_TRUE(router->state()[0].second.equal(at::tensor({0.0, -0.25, 0.25, 0.0}, at::kDouble).view({1, 4})));
  EXPECT_NEAR(router->metric("zero_share")[0], 1 - 16.0 / (3 * 8), 1e-12);
}

// Logits with fixed offsets: both the mean and the load come out right.
TEST(TopKZero, holds_the_mean_and_balances_a_fixed_router) {
  config::RunConfig config = zero_config(kTopKBias, 32, 16, 4, 6);
  config.routing.bias_rate = 0.02;
  const auto router = make_router(config, at::kCPU);
  at::manual_seed(1);
  const at::Tensor offset_C = at::randn({48}) * 0.5;
  at::Tensor counts_E = at::zeros({32}, at::kLong);
  for (int step = 0; step < 600; ++step) {
    const ops::RouteOutput output =
        router->select({0, at::randn({1024, 48}) + offset_C, at::ones({}), /*training=*/true});
    const at::Tensor step_E = output.tokens_per_expert_E.narrow(0, 0, 32);
    router->update({step_E.view({1, -1}), 1024, {}}, at::ones({}, at::kBool));
    if (step >= 500) counts_E += step_E;
  }
  EXPECT_NEAR(counts_E.sum().item<double>() / (100 * 1024), 4, 0.04);
  EXPECT_LT(counts_E.max().item<double>() / counts_E.to(at::kDouble).mean().item<double>(), 1.1);
}

// The statistics count the experts of the set at any p, without zero experts.
TEST(DTopPZero, counts_cumulative_probabilities_of_experts_alone) {
  constexpr int64_t kTokens = 300, kExperts = 12, kZero = 5;
  const config::RunConfig config = zero_config(kDTopP, kExperts, kZero, 3);
  const auto router = make_router(config, at::kCPU);
  const at::Tensor z_TC = at::randn({kTokens, kExperts + kZero}) * 1.5;
  const auto at_threshold = [&](double p) {
    router->load_state({{"threshold_C", at::full({1}, p, at::kDouble)},
                        {"error_sum_C", at::zeros({1}, at::kDouble)},
                        {"steps", at::zeros({}, at::kLong)}});
    return router->select({0, z_TC, at::ones({}), /*training=*/true});
  };
  const at::Tensor statistics = at_threshold(0.3).statistics;
  ASSERT_EQ(statistics.numel(), router->statistics_shape()[1]);
  const ActiveExpertCurve curve(statistics.narrow(0, 0, ops::kCumulativeProbBins).view({1, -1}),
                                cumulative_prob_bin_edges(at::kCPU));
  for (int i = 1; i < 100; ++i) {
    const double p = i / 100.0;
    const ops::RouteOutput output = at_threshold(p);
    const at::Tensor counts_C = output.tokens_per_expert_E;
    const auto experts = counts_C.narrow(0, 0, kExperts).sum().item<double>();
    EXPECT_NEAR(curve.below(at::full({1}, p, at::kDouble)).item<double>(), experts, 2 + 0.01 * experts) << p;
    EXPECT_EQ(output.statistics[-1].item<int64_t>(),
              counts_C.narrow(0, kExperts, kZero).sum().item<int64_t>());
  }
}

TEST(DTopPZero, holds_the_mean_of_experts_below_one) {
  config::RunConfig config = zero_config(kDTopP, 16, 8, 0.8);
  config.routing.controller = config::Controller::kSolve;
  const auto router = make_router(config, at::kCPU);
  at::manual_seed(2);
  double sum = 0;
  for (int step = 0; step < 60; ++step) {
    const ops::RouteOutput output =
        router->select({0, at::randn({2048, 24}), at::ones({}), /*training=*/true});
    const at::Tensor counts_E = output.tokens_per_expert_E.narrow(0, 0, 16);
    router->update({counts_E.view({1, -1}), 2048, output.statistics.view({1, -1})}, at::ones({}, at::kBool));
    if (step >= 20) sum += counts_E.sum().item<double>() / 2048 / 40;
  }
  EXPECT_NEAR(sum, 0.8, 0.01);
}

TEST(ZeroExperts, leave_the_layer_its_experts_only) {
  for (const auto& [method, most] : {std::pair(kTopKBias, 3), std::pair(kDTopP, 0)}) {
    const config::RunConfig config = zero_config(method, 5, 3, 2, most);
    const Routing routing{make_router(config, at::kCPU)};
    const ExpertLayerWeights weights = identity_router(config);
    const at::Tensor x_TD = at::randn({40, 8}) * 2;
    const ExpertLayerOutput output = expert_layer(x_TD, weights, 0, routing);
    const ops::RouteOutput all = routing.router->select({0, x_TD, at::ones({})});
    EXPECT_TRUE(output.routing.gates_TE.equal(all.gates_TE.narrow(1, 0, 5)));
    EXPECT_TRUE(output.routing.tokens_per_expert_E.equal(all.tokens_per_expert_E.narrow(0, 0, 5)));
    EXPECT_EQ(output.routing.active_histogram.sum().item<int64_t>(), 40);
    EXPECT_EQ((output.routing.active_histogram * at::arange(6)).sum().item<int64_t>(),
              output.routing.tokens_per_expert_E.sum().item<int64_t>());
    EXPECT_NEAR(output.routing.mean_prob_E.sum().item<double>(), 1, 1e-5);
    EXPECT_TRUE(output.routing.mean_prob_E.allclose(x_TD.narrow(1, 0, 5).softmax(1).mean(0), 1e-5, 1e-6));
  }
}

TEST(ZeroExperts, that_copy_return_the_input_times_their_gates) {
  const config::RunConfig config = zero_config(kTopKBias, 5, 3, 2, 3);
  const Routing routing{make_router(config, at::kCPU)};
  ExpertLayerWeights weights = identity_router(config);
  const at::Tensor x_TD = (at::randn({40, 8}) * 2).requires_grad_(), grad_TD = at::randn({40, 8});
  const at::Tensor alone_TD = expert_layer(x_TD, weights, 0, routing).y_TD;
  const at::Tensor gates_TC = routing.router->select({0, x_TD, at::ones({})}).gates_TE;
  const at::Tensor expected_TD = alone_TD + x_TD * gates_TC.narrow(1, 5, 3).sum(1, true);
  const at::Tensor expected_grad_TD = gradient_of(expected_TD, x_TD, grad_TD);
  weights.copies_input = true;
  const at::Tensor y_TD = expert_layer(x_TD, weights, 0, routing).y_TD;
  EXPECT_TRUE(y_TD.allclose(expected_TD, 1e-5, 1e-5));
  EXPECT_TRUE(gradient_of(y_TD, x_TD, grad_TD).allclose(expected_grad_TD, 1e-4, 1e-5));
}

// Every token's likeliest choices are zero experts.
TEST(ZeroExperts, a_batch_without_any_expert_gives_zero_and_finite_gradients) {
  for (const bool recompute : {false, true}) {
    for (const auto& [method, most] : {std::pair(kTopKBias, 2), std::pair(kDTopP, 0)}) {
      const config::RunConfig config = zero_config(method, 5, 3, 1, most);
      Routing routing{make_router(config, at::kCPU)};
      if (recompute) routing.recompute = config::Recompute::kMoe;
      const ExpertLayerWeights weights = identity_router(config);
      at::Tensor x_TD = at::rand({7, 8});
      x_TD.narrow(1, 5, 3) += 20;
      x_TD.requires_grad_();
      const ExpertLayerOutput output = expert_layer(x_TD, weights, 0, routing);
      EXPECT_TRUE(output.y_TD.eq(0).all().item<bool>());
      EXPECT_EQ(output.routing.active_histogram[0].item<int64_t>(), 7);
      const at::Tensor balance = load_balance_loss(output.routing, at::zeros({5}));
      (output.y_TD.sum() + balance + output.routing.entropy).backward();
      for (const at::Tensor& tensor : {x_TD, weights.router_ED, weights.gate_up_EGD, weights.down_EDF})
        EXPECT_TRUE(tensor.grad().isfinite().all().item<bool>());
      EXPECT_TRUE(weights.down_EDF.grad().eq(0).all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace dtopp::moe

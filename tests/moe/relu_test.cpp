#include <gtest/gtest.h>

#include "dtopp/models/batch_losses.h"
#include "dtopp/moe/make_router.h"

namespace dtopp::moe::relu_test {
namespace {

config::RunConfig config_of(int64_t experts = 8, double target = 2) {
  config::RunConfig config;
  config.model.num_layers = 2;
  config.model.num_experts = experts;
  config.routing.method = config::RoutingMethod::kRelu;
  config.routing.experts = {target};
  config.routing.normalization = config::Normalization::kNone;
  config.routing.renormalize = config::Renormalize::kNo;
  config.loss.load_balance = 0;
  config.loss.dynamic = 0;
  return config;
}

double lambda_of(const Router& router) { return router.state()[0].second.item<double>(); }

void set_lambda(Router& router, double lambda) {
  router.load_state({{"lambda", at::full({1}, lambda, at::kDouble)}});
}

models::BatchLosses losses_of(Router& router, const at::Tensor& z_LTE, const config::LossConfig& weights) {
  std::vector<ops::RouteOutput> layers;
  for (int64_t layer = 0; layer < z_LTE.size(0); ++layer)
    layers.push_back(router.select({layer, z_LTE[layer], at::ones({})}));
  models::BatchLosses losses;
  losses.total = at::zeros({});
  models::add_router_losses(layers, &router, weights, losses);
  return losses;
}

TEST(Relu, a_logit_of_zero_is_not_selected) {
  const auto router = make_router(config_of(4, 1), at::kCPU);
  const at::Tensor z_TE = at::tensor({0.0F, -1.0F, 2.0F, -0.0F}).view({1, 4}).requires_grad_();
  const ops::RouteOutput out = router->select({0, z_TE, at::ones({})});
  EXPECT_TRUE(out.tokens_per_expert_E.equal(at::tensor({0, 0, 1, 0}, at::kLong)));
  EXPECT_TRUE(out.gates_TE.equal(at::tensor({0.0F, 0.0F, 2.0F, 0.0F}).view({1, 4})));
  out.gates_TE.sum().backward();
  EXPECT_TRUE(z_TE.grad().equal(at::tensor({0.0F, 0.0F, 1.0F, 0.0F}).view({1, 4})));
}

TEST(Relu, tokens_without_an_expert_have_no_loss_and_no_gradient) {
  const config::RunConfig config = config_of();
  const auto router = make_router(config, at::kCPU);
  set_lambda(*router, 1);
  const at::Tensor z_LTE = (-at::rand({2, 10, 8}) - 0.1).requires_grad_();
  const models::BatchLosses losses = losses_of(*router, z_LTE, config.loss);
  EXPECT_EQ(losses.total.item<double>(), 0);
  losses.total.backward();
  EXPECT_TRUE(z_LTE.grad().eq(0).all().item<bool>());
  EXPECT_EQ(losses.activations.histogram()[0][0].item<int64_t>(), 10);
}

// Source: ReMoE, Eq. 9, with the mean over layers.
TEST(Relu, loss_is_the_mean_gate_weighted_by_the_load) {
  const config::RunConfig config = config_of();
  const auto router = make_router(config, at::kCPU);
  set_lambda(*router, 0.3);
  const at::Tensor z_LTE = at::randn({2, 50, 8}).requires_grad_();
  const at::Tensor exact_LTE = z_LTE.detach().to(at::kDouble).requires_grad_();
  const at::Tensor gates_LTE = exact_LTE.relu(), share_LE = exact_LTE.detach().gt(0).to(at::kDouble).mean(1);
  const at::Tensor expected = (gates_LTE.mean(1) * share_LE).sum() * (8.0 / 2) / 2 * 0.3;
  const models::BatchLosses losses = losses_of(*router, z_LTE, config.loss);
  EXPECT_NEAR(losses.total.item<double>(), expected.item<double>(), 1e-6);
  losses.total.backward();
  expected.backward();
  EXPECT_TRUE(z_LTE.grad().to(at::kDouble).allclose(exact_LTE.grad(), 1e-5, 1e-9));
}

TEST(Relu, lambda_follows_the_mean_number_of_experts) {
  const auto router = make_router(config_of(), at::kCPU);
  const auto update = [&](int64_t pairs) {  // of two layers with 10 tokens: T = 2 is 40 pairs
    at::Tensor counts_LE = at::zeros({2, 8}, at::kLong);
    counts_LE[0][3] = pairs;
    router->update({counts_LE, 10, {}}, at::full({}, true, at::kBool));
    return lambda_of(*router);
  };
  EXPECT_DOUBLE_EQ(update(41), 1.2e-8);
  EXPECT_DOUBLE_EQ(update(160), 1.2e-8 * 1.2);
  EXPECT_DOUBLE_EQ(update(40), 1.2e-8);  // a = T lowers it
  EXPECT_DOUBLE_EQ(update(0), 1.0e-8);
  EXPECT_EQ(router->metric("lambda"), std::vector<double>{1.2e-8});  // of the step
  set_lambda(*router, 1e-12);
  EXPECT_EQ(update(0), 1e-12);
  set_lambda(*router, 1e6);
  EXPECT_EQ(update(160), 1e6);
}

// A linear router that descends its own loss, against a constant pull towards more experts: half of them at
// first.
TEST(Relu, its_loss_brings_the_mean_to_the_target) {
  config::RunConfig config = config_of(32, 4);
  config.model.num_layers = 1;
  const auto router = make_router(config, at::kCPU);
  at::manual_seed(1);
  at::Tensor weight_ED = (at::randn({32, 16}) * 0.1).requires_grad_();
  double first = 0, late = 0;
  for (int step = 0; step < 800; ++step) {
    const at::Tensor x_TD = at::cat({at::randn({256, 15}), at::ones({256, 1})}, 1);
    const models::BatchLosses losses =
        losses_of(*router, x_TD.matmul(weight_ED.t()).unsqueeze(0), config.loss);
    losses.total.backward();
    const at::Tensor counts_LE = losses.activations.tokens_per_expert();
    const double experts = counts_LE.sum().item<double>() / 256;
    if (step == 0) first = experts;
    if (step >= 600) late += experts / 200;
    router->update({counts_LE, 256, {}}, at::full({}, true, at::kBool));
    weight_ED = weight_ED.detach() - weight_ED.grad() * 0.5;
    weight_ED.select(1, 15).add_(0.005);
    weight_ED.requires_grad_();
  }
  EXPECT_GT(first, 32.0 / 3);
  EXPECT_NEAR(late, 4, 0.2);
}

}  // namespace
}  // namespace dtopp::moe::relu_test

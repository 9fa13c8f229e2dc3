#include <gtest/gtest.h>

#include "dtopp/moe/routers/make_router.h"

namespace dtopp::moe {
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

TEST(TopKBias, selects_by_probability_plus_bias_and_gates_by_probability) {
  const auto router = make_router(config_of(), at::kCPU);
  const at::Tensor bias_LE = at::randn({2, 8}, at::kDouble) * 0.3;
  router->load_state({{"bias_LE", bias_LE}});
  const at::Tensor z_TE = at::randn({50, 8}).requires_grad_(), grad_TE = at::randn({50, 8});
  const ops::RouteOutput output = router->select({1, z_TE, at::ones({})});

  const at::Tensor reference_TE = z_TE.detach().requires_grad_();
  const at::Tensor p_TE = reference_TE.softmax(1);
  const at::Tensor chosen = std::get<1>((p_TE + bias_LE[1].to(at::kFloat)).detach().topk(3, 1));
  const at::Tensor kept_TE = p_TE * at::zeros({50, 8}).scatter(1, chosen, 1.0);
  const at::Tensor gates_TE = kept_TE / kept_TE.sum(1, true);
  EXPECT_TRUE(output.gates_TE.allclose(gates_TE, 1e-5, 1e-6));
  EXPECT_TRUE(output.tokens_per_expert_E.equal(gates_TE.ne(0).sum(0)));
  output.gates_TE.backward(grad_TE);
  gates_TE.backward(grad_TE);
  EXPECT_TRUE(z_TE.grad().allclose(reference_TE.grad(), 1e-4, 1e-6));
}

TEST(TopKBias, without_a_bias_is_top_k) {
  config::RunConfig config = config_of();
  for (const config::Normalization normalization :
       {config::Normalization::kNone, config::Normalization::kFixed, config::Normalization::kDynamic}) {
    config.routing.normalization = normalization;
    config.routing.method = config::RoutingMethod::kTopKBias;
    const auto with_bias = make_router(config, at::kCPU);
    config.routing.method = config::RoutingMethod::kTopK;
    const auto top_k = make_router(config, at::kCPU);
    const RouterInput input = {0, at::randn({50, 8}), at::full({}, 1.5)};
    EXPECT_TRUE(with_bias->select(input).gates_TE.allclose(top_k->select(input).gates_TE, 1e-5, 1e-6));
  }
}

TEST(TopKBias, chooses_the_first_of_equals) {
  const ops::RouteOutput output =
      make_router(config_of(), at::kCPU)->select({0, at::zeros({4, 8}), at::ones({})});
  EXPECT_TRUE(output.tokens_per_expert_E.equal(at::tensor({4, 4, 4, 0, 0, 0, 0, 0}, at::kLong)));
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

// 16 experts whose logits have different means: some get no token at first.
TEST(TopKBias, evens_the_load_of_a_fixed_router) {
  config::RunConfig config = config_of(16, 4);
  config.model.num_layers = 1;
  config.routing.bias_rate = 0.003;
  const auto router = make_router(config, at::kCPU);
  at::manual_seed(1);
  const at::Tensor offset_E = at::randn({16}) * 0.7;
  const auto imbalance = [&](bool update) {
    const ops::RouteOutput output = router->select({0, at::randn({1024, 16}) + offset_E, at::ones({})});
    const at::Tensor& counts_E = output.tokens_per_expert_E;
    if (update) router->update({counts_E.view({1, -1}), 1024, {}}, applied(true));
    return counts_E.max().item<double>() / counts_E.to(at::kDouble).mean().item<double>();
  };
  EXPECT_GT(imbalance(false), 2);
  for (int step = 0; step < 300; ++step) imbalance(true);
  EXPECT_LT(imbalance(false), 1.25);
}

TEST(TopKBias, refuses_a_state_of_another_shape_and_a_rate_that_is_not_positive) {
  EXPECT_THROW(make_router(config_of(), at::kCPU)->load_state({{"bias_LE", at::zeros({2, 4}, at::kDouble)}}),
               std::invalid_argument);
  EXPECT_THROW(make_router(config_of(), at::kCPU)->load_state({}), std::invalid_argument);
  config::RunConfig config = config_of();
  config.routing.bias_rate = 0;
  EXPECT_ANY_THROW(make_router(config, at::kCPU));
}

}  // namespace
}  // namespace dtopp::moe

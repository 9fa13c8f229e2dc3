#include "dtopp/moe/expert_bias.h"

#include <gtest/gtest.h>

#include "dtopp/moe/make_router.h"

namespace dtopp::moe::expert_bias_test {
namespace {

constexpr int64_t kExperts = 8, kTokens = 3000;

struct QuantileRule : testing::TestWithParam<config::RoutingMethod> {
  QuantileRule() {
    config.model.num_layers = 1;
    config.model.num_experts = kExperts;
    config.model.sequence_length = 1;  // no token is left out of the statistics
    config.training.global_batch_size = kTokens;
    config.routing.method = GetParam();
    config.routing.experts = {3};
    config.routing.bias_rule = config::BiasRule::kQuantile;
    config.routing.normalization =
        is_top_k() ? config::Normalization::kNone : config::Normalization::kDynamic;
    router = make_router(config, at::kCPU);
  }

  static bool is_top_k() { return GetParam() == config::RoutingMethod::kTopKBias; }
  RouterInput input_of(const at::Tensor& z_TE) const {
    return {0, z_TE, at::full({}, 1.3), /*training=*/true};
  }
  // The numbers to which the biases are added.
  at::Tensor score_TE(const at::Tensor& z_TE) const {
    return is_top_k() ? z_TE.sigmoid() : softmax_inputs(input_of(z_TE), config.routing.normalization);
  }
  at::Tensor bias_E() const { return ops::find_tensor(router->state(), "bias_LE", "router")[0]; }
  StepCounts counts_of(const std::vector<at::Tensor>& batches) const {
    at::Tensor tokens_E = at::zeros({kExperts}, at::kLong), statistics = at::zeros({1}, at::kLong);
    int64_t tokens = 0;
    for (const at::Tensor& z_TE : batches) {
      const ops::RouteOutput output = router->select(input_of(z_TE));
      tokens_E = tokens_E + output.tokens_per_expert_E;
      statistics = statistics + output.statistics;
      tokens += z_TE.size(0);
    }
    return {tokens_E.unsqueeze(0), tokens, statistics.unsqueeze(0)};
  }
  void step(const StepCounts& counts) const { router->update(counts, at::scalar_tensor(true, at::kBool)); }

  config::RunConfig config;
  std::unique_ptr<Router> router;
};

at::Tensor uneven_logits() {
  return at::randn({kTokens, kExperts}) + at::linspace(-2, 2, kExperts);  // without a bias, the last are busy
}

double imbalance(const StepCounts& counts) {
  const at::Tensor c_E = counts.tokens_per_expert_LE[0].to(at::kDouble);
  return c_E.max().item<double>() / c_E.mean().item<double>();
}

// Sorts what each expert alone would need.
TEST_P(QuantileRule, gives_each_expert_the_load_that_it_would_have_alone) {
  at::manual_seed(3);
  const at::Tensor z_TE = uneven_logits();
  for (int i = 0; i < 3; ++i) {
    const at::Tensor score = score_TE(z_TE).to(at::kDouble), sum = score + (bias_E() - bias_E().mean());
    const at::Tensor n_T = router->select(input_of(z_TE)).gates_TE.ne(0).sum(1);
    const StepCounts counts = counts_of({z_TE});
    const int64_t wanted = counts.tokens_per_expert_LE.sum().item<int64_t>() / kExperts;
    std::vector<double> expected;
    for (int64_t e = 0; e < kExperts; ++e) {
      at::Tensor others = sum.clone();
      others.select(1, e).fill_(-1e9);
      const at::Tensor sorted = std::get<0>(others.sort(/*dim=*/1, /*descending=*/true));
      const at::Tensor lowest_T = sorted.gather(1, (n_T - 1).unsqueeze(1)).squeeze(1);
      const at::Tensor needed_T = std::get<0>((lowest_T - score.select(1, e)).sort());
      expected.push_back(needed_T[wanted].item<double>());
    }
    step(counts);
    at::Tensor expected_E = at::tensor(expected, at::kDouble);
    expected_E = expected_E - expected_E.mean();
    EXPECT_LT((bias_E() - expected_E).abs().max().item<double>(), is_top_k() ? 0.004 : 0.03) << i;
  }
}

TEST_P(QuantileRule, balances_in_three_steps) {
  at::manual_seed(4);
  EXPECT_GT(imbalance(counts_of({uneven_logits()})), 1.9);
  for (int i = 0; i < 3; ++i) step(counts_of({uneven_logits()}));
  EXPECT_LT(imbalance(counts_of({uneven_logits()})), 1.15);
}

TEST_P(QuantileRule, adds_up_micro_batches) {
  const at::Tensor z_TE = uneven_logits();
  const StepCounts whole = counts_of({z_TE}), parts = counts_of(z_TE.split(700));
  EXPECT_TRUE(whole.statistics.equal(parts.statistics));
}

TEST_P(QuantileRule, counts_logits_that_are_not_finite) {
  at::Tensor z_TE = uneven_logits();
  z_TE[0].fill_(std::numeric_limits<float>::quiet_NaN());
  z_TE[1][2] = std::numeric_limits<float>::infinity();
  step(counts_of({z_TE}));
  EXPECT_TRUE(bias_E().isfinite().all().item<bool>());
}

INSTANTIATE_TEST_SUITE_P(ExpertBias, QuantileRule,
                         testing::Values(config::RoutingMethod::kTopKBias, config::RoutingMethod::kDTopPBias),
                         [](const auto& one) {
                           return one.param == config::RoutingMethod::kTopKBias ? "top_k_bias"
                                                                                : "dtop_p_bias";
                         });

}  // namespace
}  // namespace dtopp::moe::expert_bias_test

#include <gtest/gtest.h>

#include "dtopp/moe/make_router.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::moe::expert_threshold_test {
namespace {

config::RunConfig config_of(int64_t experts, double target, double decay) {
  config::RunConfig config;
  config.model.num_layers = 1;
  config.model.num_experts = experts;
  config.model.sequence_length = 1;
  config.training.global_batch_size = 1024;
  config.routing.method = config::RoutingMethod::kExpertThreshold;
  config.routing.experts = {target};
  config.routing.normalization = config::Normalization::kNone;
  config.routing.renormalize = config::Renormalize::kNo;
  config.routing.cut_decay = decay;
  return config;
}

ops::RouteOutput step(Router& router, const at::Tensor& z_TE) {
  const ops::RouteOutput out = router.select({0, z_TE, at::ones({}), /*training=*/true});
  router.update({out.tokens_per_expert_E.view({1, -1}), z_TE.size(0), out.statistics.view({1, -1})},
                at::full({}, true, at::kBool));
  return out;
}

double experts_of(const ops::RouteOutput& out) {
  return out.tokens_per_expert_E.sum().item<double>() / static_cast<double>(out.gates_TE.size(0));
}

at::Tensor exact_rank(const at::Tensor& z_TE, int64_t rank) {
  return std::get<0>(z_TE.to(at::kDouble).topk(rank, 0))[rank - 1];
}

TEST(LogitHistogram, rank_is_within_a_bin_of_the_exact_one) {
  const at::Tensor z_TE = at::randn({500, 6}) * 3;
  for (const int64_t rank : {1, 2, 77, 250, 500}) {
    const at::Tensor error_E =
        ops::ranked_logit(ops::logit_histogram(z_TE, /*stride=*/1), rank) - exact_rank(z_TE, rank);
    EXPECT_LE(error_E.abs().max().item<double>(), 1.0 / 32) << rank;
  }
}

TEST(LogitHistogram, rank_is_exact_where_it_ends_a_bin) {
  const at::Tensor z_TE = at::tensor({3.0F, 1.0F, 1.0F, -2.0F, -2.0F, -5.5F}).view({6, 1});
  for (const int64_t rank : {1, 3, 5, 6})
    EXPECT_EQ(ops::ranked_logit(ops::logit_histogram(z_TE, /*stride=*/1), rank).item<double>(),
              exact_rank(z_TE, rank).item<double>());
}

TEST(LogitHistogram, counts_every_value_once) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor z_TE = at::tensor({-inf, inf, 99.0F, -99.0F, 0.0F, std::nanf("")}).view({6, 1});
  const at::Tensor counts = ops::logit_histogram(z_TE, /*stride=*/1)[0];
  EXPECT_EQ(counts[0].item<int64_t>(), 3);
  EXPECT_EQ(counts[ops::kLogitBins - 1].item<int64_t>(), 2);
  EXPECT_EQ(counts[ops::kLogitBins / 2].item<int64_t>(), 1);
}

// The CUDA version consists of tensor operations, which a CPU can run.
TEST(LogitHistogram, a_cpu_counts_what_a_cuda_device_counts) {
  const auto cuda = c10::Dispatcher::singleton()
                        .findSchemaOrThrow("dtopp::logit_histogram", "")
                        .typed<at::Tensor(const at::Tensor&, int64_t)>();
  for (const int64_t experts : {1, 5, 16, 33, 64}) {
    for (const int64_t stride : {1, 3}) {
      const at::Tensor z_TE = at::randn({101, experts}) * 9;
      EXPECT_TRUE(ops::logit_histogram(z_TE, stride)
                      .equal(cuda.redispatch(c10::DispatchKeySet(c10::DispatchKey::CUDA), z_TE, stride)));
    }
  }
}

TEST(ExpertThreshold, a_logit_that_equals_the_threshold_is_selected) {
  const auto router = make_router(config_of(2, 1, 0), at::kCPU);
  router->load_state({{"cut_LE", at::tensor({0.5, 0.25}, at::kDouble).view({1, 2})},
                      {"cut_steps", at::full({}, 7, at::kLong)}});
  const at::Tensor z_TE = at::tensor({0.5F, 0.2F, 0.4F, 0.25F, 0.0F, 0.0F}).view({3, 2});
  const ops::RouteOutput out = router->select({0, z_TE, at::ones({})});
  EXPECT_TRUE(out.gates_TE.ne(0).equal(at::tensor({1, 0, 0, 1, 0, 0}).view({3, 2}).to(at::kBool)));
  EXPECT_TRUE(out.active_histogram.equal(at::tensor({1, 2, 0}, at::kLong)));
}

TEST(ExpertThreshold, averages_the_cuts_of_the_steps) {
  const auto router = make_router(config_of(6, 2, 0.9), at::kCPU);
  at::Tensor average = at::zeros({6}, at::kDouble);
  for (int n = 1; n <= 3; ++n) {
    const at::Tensor z_TE = at::randn({600, 6});
    step(*router, z_TE);
    average = 0.9 * average + 0.1 * ops::ranked_logit(ops::logit_histogram(z_TE, /*stride=*/1), 200);
    EXPECT_TRUE(router->state()[0].second[0].allclose(average, 1e-12, 0));
    EXPECT_NEAR(router->metric("cut")[0], (average / (1 - std::pow(0.9, n))).mean().item<double>(), 1e-6);
  }
}

// 32 experts whose logits have different means.
TEST(ExpertThreshold, holds_the_target_with_an_even_load) {
  const auto router = make_router(config_of(32, 4, 0.9), at::kCPU);
  at::manual_seed(1);
  const at::Tensor offset_E = at::randn({32}) * 0.7;
  for (int n = 0; n < 40; ++n) step(*router, at::randn({1024, 32}) + offset_E);
  const ops::RouteOutput out = router->select({0, at::randn({8192, 32}) + offset_E, at::ones({})});
  EXPECT_NEAR(experts_of(out), 4, 0.08);
  const at::Tensor counts_E = out.tokens_per_expert_E.to(at::kDouble);
  EXPECT_LT((counts_E.max() / counts_E.mean()).item<double>(), 1.12);
  EXPECT_GT(out.active_histogram[0].item<int64_t>(), 0);
}

TEST(ExpertThreshold, follows_a_jump_of_all_logits) {
  const auto router = make_router(config_of(16, 4, 0.8), at::kCPU);
  for (int n = 0; n < 20; ++n) step(*router, at::randn({1024, 16}));
  EXPECT_GT(experts_of(step(*router, at::randn({1024, 16}) + 1)), 8);
  for (int n = 0; n < 25; ++n) step(*router, at::randn({1024, 16}) + 1);
  EXPECT_NEAR(experts_of(step(*router, at::randn({1024, 16}) + 1)), 4, 0.25);
}

}  // namespace
}  // namespace dtopp::moe::expert_threshold_test

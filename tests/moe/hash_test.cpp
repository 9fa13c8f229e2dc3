#include <cmath>

#include <gtest/gtest.h>

#include "dtopp/moe/make_router.h"

namespace dtopp::moe {
namespace {

constexpr int64_t kIds = 2000, kExperts = 16, kChosen = 3;

config::RunConfig hash_config(int64_t vocab_size = kIds) {
  config::RunConfig config;
  config.model.num_layers = 2;
  config.model.num_experts = kExperts;
  config.model.vocab_size = vocab_size;
  config.routing.method = config::RoutingMethod::kHash;
  config.routing.experts = {kChosen};
  config.routing.normalization = config::Normalization::kNone;
  return config;
}

ops::RouteOutput select_ids(Router& router, int64_t layer, const at::Tensor& ids_T) {
  return router.select({layer, {}, {}, /*training=*/true, ids_T});
}

TEST(Hash, gives_every_id_different_experts_with_equal_gates) {
  const auto router = make_router(hash_config(), at::kCPU);
  const ops::RouteOutput output = select_ids(*router, 0, at::arange(kIds));
  EXPECT_TRUE(output.gates_TE.ne(0).sum(1).eq(kChosen).all().item<bool>());
  EXPECT_TRUE(output.gates_TE.sum(1).allclose(at::ones({kIds})));
  EXPECT_TRUE(output.tokens_per_expert_E.equal(output.gates_TE.ne(0).sum(0)));
  EXPECT_EQ(output.active_histogram[kChosen].item<int64_t>(), kIds);
  EXPECT_EQ(output.active_histogram.sum().item<int64_t>(), kIds);
}

TEST(Hash, gives_a_token_the_experts_of_its_id_in_any_batch_and_vocabulary) {
  const auto router = make_router(hash_config(), at::kCPU),
             larger = make_router(hash_config(3 * kIds), at::kCPU);
  const at::Tensor all_TE = select_ids(*router, 1, at::arange(kIds)).gates_TE;
  const at::Tensor ids_T = at::tensor({7, 0, 7, 1999, 12}, at::kLong);
  EXPECT_TRUE(select_ids(*router, 1, ids_T).gates_TE.equal(all_TE.index_select(0, ids_T)));
  EXPECT_TRUE(select_ids(*larger, 1, ids_T).gates_TE.equal(all_TE.index_select(0, ids_T)));
}

// Both counts are binomial. Five standard deviations are allowed.
TEST(Hash, draws_every_expert_equally_often_and_independently_in_each_layer) {
  const auto router = make_router(hash_config(), at::kCPU);
  const ops::RouteOutput first = select_ids(*router, 0, at::arange(kIds)),
                         second = select_ids(*router, 1, at::arange(kIds));
  const auto near = [](const at::Tensor& counts, double share) {
    const double most = 5 * std::sqrt(kIds * share * (1 - share));
    return (counts.to(at::kDouble) - kIds * share).abs().le(most).all().item<bool>();
  };
  constexpr double kShare = static_cast<double>(kChosen) / kExperts;
  EXPECT_TRUE(near(first.tokens_per_expert_E, kShare));
  EXPECT_TRUE(near(second.tokens_per_expert_E, kShare));
  const at::Tensor both_E = first.gates_TE.ne(0).logical_and(second.gates_TE.ne(0)).sum(0);
  EXPECT_TRUE(near(both_E, kShare * kShare));
}

TEST(Hash, has_no_state_and_no_loss) {
  const auto router = make_router(hash_config(), at::kCPU);
  EXPECT_TRUE(router->state().empty());
  const ops::RouteOutput output = select_ids(*router, 0, at::arange(0));
  EXPECT_EQ(output.gates_TE.size(0), 0);
  EXPECT_EQ(output.mean_prob_E.sum().item<double>() + output.entropy.item<double>(), 0);
}

}  // namespace
}  // namespace dtopp::moe

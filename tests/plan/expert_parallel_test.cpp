#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/plan/plan.h"
#include "tests/plan/tiny_run.h"

namespace dtopp::plan::expert_parallel_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error(const distributed::ParallelDims& dims) {
  try {
    check_dims(dims, tiny().model);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(CheckLayout, names_what_does_not_divide) {
  EXPECT_EQ(error({12, 2, 3}), "no error");
  EXPECT_EQ(error({12, 5, 1}), "--nodes: 5 does not divide the 12 ranks");
  EXPECT_EQ(error({12, 2, 4}), "parallel.expert_parallel: 4 does not divide the 6 ranks of a node");
  EXPECT_EQ(error({12, 1, 4}), "parallel.expert_parallel: 4 does not divide the 6 experts of a layer");
  for (const distributed::ParallelDims& dims :
       {distributed::ParallelDims{0, 1, 1}, distributed::ParallelDims{1, 0, 1},
        distributed::ParallelDims{1, 1, 0}})
    EXPECT_THAT(error(dims), HasSubstr("must be at least 1"));
}

TEST(PossibleExpertParallel, divides_experts_and_the_ranks_of_a_node) {
  config::ModelConfig model = tiny().model;
  EXPECT_THAT(possible_expert_parallel({24, 2}, model), ElementsAre(1, 2, 3, 6));
  EXPECT_THAT(possible_expert_parallel({8, 2}, model), ElementsAre(1, 2));
  model.num_experts = 1;
  EXPECT_THAT(possible_expert_parallel({8, 1}, model), ElementsAre(1));
}

TEST(PlansByExpertParallel, more_ranks_that_share_experts_hold_less_and_send_no_more_between_nodes) {
  config::RunConfig config = tiny();
  config.training.micro_batch_size = 1;
  const std::vector<Plan> plans = plans_by_expert_parallel(config, {12, 2}, config::Device::kCpu);
  ASSERT_EQ(plans.size(), 4U);
  for (size_t i = 1; i < plans.size(); ++i) {
    EXPECT_LT(plans[i].memory_bytes("gradients"), plans[i - 1].memory_bytes("gradients"));
    EXPECT_LE(plans[i].communication.edp_gradients.between, plans[i - 1].communication.edp_gradients.between);
    EXPECT_GT(plans[i].communication.combine.inside, plans[i - 1].communication.combine.inside);
  }
}

Plan plan_of(int64_t degree, uint64_t memory) {
  Plan plan;
  plan.dims.ep_size = degree;
  plan.memory = {{"program", memory}};
  return plan;
}

TEST(Recommend, takes_the_fewest_ranks_that_fit) {
  const std::vector<Plan> plans = {plan_of(1, 300), plan_of(2, 200), plan_of(4, 100)};
  const Recommendation all = recommend(plans, {"toy", 300});
  EXPECT_EQ(all.expert_parallel, 1);
  EXPECT_EQ(all.reason, "300 B fit the 300 B of toy, so no rows have to be exchanged");
  const Recommendation some = recommend(plans, {"toy", 299});
  EXPECT_EQ(some.expert_parallel, 2);
  EXPECT_THAT(some.reason, HasSubstr("1 would need 300 B"));
  EXPECT_EQ(some.fastest, 2);  // rates are unknown
  const Recommendation none = recommend(plans, {"toy", 99});
  EXPECT_EQ(none.expert_parallel, 4);
  EXPECT_EQ(none.reason, "none fits the 99 B of toy; this one needs the least, 100 B");
}

TEST(Recommend, names_a_faster_one_that_fits) {
  std::vector<Plan> plans = {plan_of(1, 300), plan_of(2, 200), plan_of(4, 400)};
  plans[0].communication.dispatch.inside = 2;
  plans[1].communication.dispatch.inside = 1;
  const Recommendation best = recommend(plans, {"toy", 300, device::DeviceRates{1, 1, 1, 1, 1}});
  EXPECT_EQ(best.expert_parallel, 1);
  EXPECT_EQ(best.fastest, 2);  // 4 does not fit
  EXPECT_THAT(best.reason, ::testing::EndsWith("; 2 would have the shortest step"));
}

}  // namespace
}  // namespace dtopp::plan::expert_parallel_test

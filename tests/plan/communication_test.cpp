#include <bit>

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "dtopp/plan/plan.h"
#include "tests/plan/tiny_run.h"

namespace dtopp::plan::communication_test {
namespace {

// Counts over every set of `active` experts.
double counted_ranks(int64_t experts, int64_t ranks, int64_t active) {
  const int64_t each = experts / ranks;
  const uint64_t local = (uint64_t{1} << static_cast<uint64_t>(each)) - 1;
  double sum = 0, sets = 0;
  for (uint64_t set = 0; set < uint64_t{1} << static_cast<uint64_t>(experts); ++set) {
    if (std::popcount(set) != active) continue;
    sets += 1;
    for (int64_t rank = 0; rank < ranks; ++rank)
      sum += (set >> static_cast<uint64_t>(rank * each) & local) != 0 ? 1 : 0;
  }
  return sum / sets;
}

TEST(ExpectedRanks, is_the_mean_over_all_sets_of_experts) {
  for (const int64_t ranks : {1, 2, 3, 4, 6, 12}) {
    for (int64_t active = 1; active <= 12; ++active)
      EXPECT_NEAR(expected_ranks(12, ranks, static_cast<double>(active)), counted_ranks(12, ranks, active),
                  1e-12);
  }
  EXPECT_NEAR(expected_ranks(12, 4, 2.25), 0.75 * counted_ranks(12, 4, 2) + 0.25 * counted_ranks(12, 4, 3),
              1e-12);
}

SentBytes sent(const Plan& plan, const std::string& name) {
  for (const CollectiveBytes& one : by_collective(plan.communication)) {
    if (one.name == name) return {static_cast<double>(one.inside), static_cast<double>(one.between)};
  }
  ADD_FAILURE() << name;
  return {};
}

constexpr double kDense = 88 + 2 * (256 + 32 + 49) + 8, kExperts = 2 * 720;

TEST(Communication, without_expert_parallelism_is_a_reduce_scatter_and_a_gather_of_all_parameters) {
  const Plan plan = make_plan(tiny(config::Precision::kBf16), {.world_size = 4, .nodes = 2});
  const double all = kDense + kExperts;
  EXPECT_NEAR(sent(plan, "reduce_scatter").total(), 0.75 * 4 * all, 1);
  // Half goes to the other rank of the node. Half of the node's sum goes to the other node.
  EXPECT_NEAR(sent(plan, "reduce_scatter").inside, 0.5 * 4 * all, 1);
  EXPECT_NEAR(sent(plan, "reduce_scatter").between, 0.25 * 4 * all, 1);
  // In a gather, all ranks of a group send as many elements of a type as the rank with the most. The ranks of
  // a node hold 1,016 and 1,096 bf16 elements, and 96 and 2 fp32 elements of the routers. Across nodes, one
  // pair holds 656 and 360, and 0 and 96; the other holds 544 and 552, and 2 and 0.
  EXPECT_NEAR(sent(plan, "gather").inside, 2 * 1096 + 4 * 96, 1);
  EXPECT_NEAR(sent(plan, "gather").between, (2 * 656 + 4 * 96 + 2 * 552 + 4 * 2) / 2.0, 1);
  EXPECT_EQ(sent(plan, "dispatch").total(), 0);
  EXPECT_EQ(sent(plan, "combine").total(), 0);
  // The step numbers, which an all-reduce sums and returns: six losses of four micro-batches; one gradient
  // norm per chunk, for 22 parameters of one chunk and four expert parameters of six; two flags; the most
  // token-expert pairs of two layers on four ranks; two sums over tokens; 6 + 7 counts and 7 sums of logits
  // for each of two layers; one probability histogram.
  EXPECT_NEAR(sent(plan, "step").total(), 2 * 0.75 * 8 * (24 + 22 + 6 * 4 + 2 + 8 + 2 + 26 + 14 + 4096), 1);
}

TEST(Communication, replicas_that_form_no_tree_in_a_node_exchange_directly) {
  config::RunConfig config = tiny();
  config.training.micro_batch_size = 1;
  const Plan plan = make_plan(config, {.world_size = 6, .nodes = 2});
  // Two of the five peers are on the same node.
  EXPECT_NEAR(sent(plan, "reduce_scatter").inside, 2.0 / 6 * 4 * (kDense + kExperts), 1);
  EXPECT_NEAR(sent(plan, "reduce_scatter").between, 3.0 / 6 * 4 * (kDense + kExperts), 1);
}

TEST(Communication, with_expert_parallelism_by_hand) {
  const Plan plan = make_plan(tiny(), {.world_size = 4, .nodes = 2, .ep_size = 2});
  // One micro-step. Half of the dense gradients goes to the other rank of the EP group. Then half of this
  // rank's shard goes to the other EP group, which is on the other node.
  EXPECT_NEAR(sent(plan, "reduce_scatter").inside, 0.5 * kDense * 4, 1);
  EXPECT_NEAR(sent(plan, "reduce_scatter").between, 0.5 * (kDense + kExperts) / 2 * 4, 1);
  // EP ranks hold 392 and 378 dense elements. The ranks of one EDP group hold 656 and 456 elements, those of
  // the other 546 and 552.
  EXPECT_NEAR(sent(plan, "gather").inside, 392 * 4, 1);
  EXPECT_NEAR(sent(plan, "gather").between, (656 + 552) / 2.0 * 4, 1);
  // Two of the 20 sets of three of six experts lie on one rank. So a token goes to 1.9 ranks, and 0.95 of
  // them are the other rank.
  EXPECT_DOUBLE_EQ(plan.communication.rows_per_token, 1.9);
  const double rows = 12 * 2 * 0.95;  // tokens, layers
  EXPECT_NEAR(sent(plan, "dispatch").inside, 2 * rows * (8 * 4 + 3 * 4) + 2 * 16, 1);
  EXPECT_NEAR(sent(plan, "combine").inside, 2 * rows * 8 * 4, 1);
  EXPECT_EQ(sent(plan, "dispatch").between + sent(plan, "combine").between, 0);
}

TEST(Communication, dense_gradients_travel_once_where_sums_need_not_be_reproducible) {
  config::RunConfig config = tiny();
  config.training.global_batch_size = 24;
  const distributed::ParallelDims dims = {.world_size = 4, .nodes = 1, .ep_size = 2};
  const auto block = [&] { return make_plan(config, dims).communication.ep_gradients.total(); };
  EXPECT_NEAR(block(), 2 * 0.5 * kDense * 4, 1);  // two micro-steps
  config.parallel.reproducible = false;
  EXPECT_NEAR(block(), 0.5 * kDense * 4, 1);
}

TEST(Communication, the_busiest_rank_owns_an_aligned_block_of_micro_batches) {
  config::RunConfig config = tiny();
  config.training.global_batch_size = 18;  // 2, 2, 2, 0 micro-batches
  const Communication uneven = make_plan(config, {.world_size = 4}).communication;
  EXPECT_EQ(uneven.micro_steps, 2);
  EXPECT_DOUBLE_EQ(uneven.busiest_share, 2 / 1.5);
  EXPECT_DOUBLE_EQ(make_plan(tiny(), {.world_size = 4}).communication.busiest_share, 1);
}

// The prototype's paper calculation for 13.5 billion parameters, in GB: gradients, parameters, rows.
TEST(Communication, agrees_with_an_independent_count_of_the_papers_largest_model) {
  const config::RunConfig config = config::load_run_config(
      std::string(DTOPP_SOURCE_DIR) + "/configs/moe-2.4b-13.6b-64e8a.yaml", {"data.train=x"});
  const Plan plan = make_plan(config, {.world_size = 64, .nodes = 8, .ep_size = 4}, config::Device::kCuda);
  EXPECT_NEAR(sent(plan, "reduce_scatter").total(), 14.6e9, 0.05e9);
  EXPECT_NEAR(sent(plan, "gather").total(), 7.3e9, 0.05e9);
  EXPECT_NEAR(sent(plan, "combine").total(), 23.6e9 / 2, 0.05e9);
  EXPECT_NEAR(sent(plan, "dispatch").total(), 23.6e9 / 2 * (1 + 64.0 / 4096),
              0.05e9);  // gates are sent with x
}

RC_GTEST_PROP(CommunicationProperty, nodes_move_bytes_and_add_none, ()) {
  config::RunConfig config = tiny(*rc::gen::element(config::Precision::kFp32, config::Precision::kBf16));
  config.training.micro_batch_size = 1;
  config.training.global_batch_size = *rc::gen::inRange<int64_t>(24, 100);
  config.parallel.reproducible = *rc::gen::arbitrary<bool>();
  const int64_t degree = *rc::gen::element<int64_t>(1, 2, 3, 6);
  const int64_t blocks = *rc::gen::element<int64_t>(1, 2, 4);
  const int64_t ranks = degree * blocks;
  const Plan together = make_plan(config, {ranks, 1, degree}),
             apart = make_plan(config, {ranks, blocks, degree});
  for (const CollectiveBytes& one : by_collective(together.communication)) {
    const SentBytes other = sent(apart, one.name);
    RC_ASSERT(one.between == 0U);
    // The largest shard, which each rank of a gather sends, depends on the groups.
    if (one.name == "gather") continue;
    RC_ASSERT(std::abs(other.total() - static_cast<double>(one.inside)) <= 1);
  }
  // All EDP ranks of an expert are on different nodes.
  RC_ASSERT(apart.communication.edp_gradients.inside == 0);
}

}  // namespace
}  // namespace dtopp::plan::communication_test

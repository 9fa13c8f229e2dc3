// Tests that the bytes that ranks send in a step match the plan (dtopp/plan/communication.h).
#include <map>

#include <gtest/gtest.h>

#include "dtopp/models/registry/make_model.h"
#include "dtopp/plan/plan.h"
#include "tests/distributed/mirrored_collectives.h"
#include "tests/distributed/rank_threads.h"
#include "tests/train/tiny_model.h"

namespace dtopp {
namespace {

struct Shape {
  const char* name;
  ParallelDims dims;
  void (*change)(RunConfig&);
  at::ScalarType type = at::kFloat;
};

// Sends every token to every rank, so the number of rows is known.
void choose_all(RunConfig& config) {
  config.routing.method = RoutingMethod::kTopK;
  config.routing.experts = {static_cast<double>(config.model.num_experts)};
}

const std::vector<Shape> kShapes = {
    {"two ranks", ep_by_edp(1, 2), [](RunConfig&) {}},
    {"four ranks", ep_by_edp(1, 4), [](RunConfig&) {}},
    {"four ranks, wide", ep_by_edp(1, 4), [](RunConfig& c) { c.model.hidden_size = 512; }},
    {"dense",
     {1, 2},
     [](RunConfig& c) {
       c.model.num_experts = 1;
       c.model.ffn_hidden_size = 2048;
       c.routing.experts.clear();
     }},
    {"bf16", ep_by_edp(1, 2), [](RunConfig&) {}, at::kBFloat16},
    {"a block of two", ep_by_edp(2, 1), choose_all},
    {"a block of four", ep_by_edp(4, 1), choose_all},
    {"two blocks of two", ep_by_edp(2, 2), choose_all},
    {"two blocks in bf16", ep_by_edp(2, 2), choose_all, at::kBFloat16},
    {"two nodes", ep_by_edp(1, 4, 2), [](RunConfig&) {}},
    {"two nodes of a block", ep_by_edp(2, 2, 2), choose_all},
    {"a block that adds up once a step",
     {2, 1},
     [](RunConfig& c) { choose_all(c), c.parallel.reproducible = false; }},
};

// The bytes that the mean rank sends in one step, by collective.
std::map<std::string, double> measured(const RunConfig& config, const Shape& shape) {
  std::map<std::string, double> mean;
  std::mutex mutex;
  run_ranks(shape.dims.world_size, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    at::set_num_threads(1);
    const auto counts = std::make_shared<CollectiveCounts>();
    Trainer trainer(config, make_model(config), data_for(config), shape.type,
                    make_process_groups(store, rank, shape.dims, on_loopback(), counts));
    trainer.initialise();
    step(trainer);  // the first step also exchanges the names of the losses
    const std::map<std::string, Traffic> before = counts->traffic();
    step(trainer);
    const std::lock_guard lock(mutex);
    for (const auto& [name, traffic] : counts->traffic()) {
      const auto earlier = before.find(name);
      const int64_t sent = traffic.bytes - (earlier == before.end() ? 0 : earlier->second.bytes);
      mean[name] += static_cast<double>(sent) / static_cast<double>(shape.dims.world_size);
    }
  });
  return mean;
}

TEST(Traffic, is_within_two_percent_of_the_plan_by_collective) {
  const int threads = at::get_num_threads();
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.name);
    RunConfig config = tiny();
    config.model.hidden_size = 256;
    config.model.ffn_hidden_size = 128;
    config.model.num_experts = 16;
    config.model.vocab_size = 4096;
    config.training.global_batch_size = 16;
    shape.change(config);
    config.training.precision = shape.type == at::kFloat ? Precision::kFp32 : Precision::kBf16;
    const Plan plan = make_plan(config, shape.dims);
    const std::map<std::string, double> sent = measured(config, shape);
    double planned_sum = 0, sum = 0;
    for (const CollectiveBytes& planned : by_collective(plan.communication)) {
      const auto found = sent.find(planned.name);
      const double bytes = found == sent.end() ? 0 : found->second;
      const auto expected = static_cast<double>(planned.inside + planned.between);
      // The plan contains neither the number of losses nor the rank that owns one more chunk.
      EXPECT_NEAR(bytes, expected, 0.02 * expected + 512) << planned.name;
      planned_sum += expected;
      sum += bytes;
    }
    EXPECT_NEAR(sum, planned_sum, 0.02 * planned_sum);
    EXPECT_GT(sum, 1e6);
  }
  at::set_num_threads(threads);
}

constexpr ParallelDims kSixteenNodes = ep_by_edp(8, 16, 16);

// A layer like the paper's, with 64 experts of which 8 are active, for 128 ranks.
RunConfig paper_like(int64_t hidden_size, int64_t ffn_hidden_size) {
  RunConfig config = tiny();
  config.model.hidden_size = hidden_size;
  config.model.num_layers = 1;
  config.model.num_heads = 16;
  config.model.ffn_hidden_size = ffn_hidden_size;
  config.model.num_experts = 64;
  config.model.vocab_size = 4096;
  config.model.sequence_length = 64;
  config.routing.method = RoutingMethod::kTopK;
  config.routing.experts = {8};
  config.training.global_batch_size = 2 * kSixteenNodes.world_size * config.training.micro_batch_size;
  return config;
}

std::map<std::string, double> planned_on_sixteen_nodes(const RunConfig& config) {
  const Plan plan = make_plan(config, kSixteenNodes);
  std::map<std::string, double> bytes;
  for (const CollectiveBytes& planned : by_collective(plan.communication))
    bytes[planned.name] = static_cast<double>(planned.inside + planned.between);
  return bytes;
}

// The process groups of one rank of many. The other ranks do not exist.
ProcessGroups groups_of(int64_t rank, const ParallelDims& dims,
                        const std::shared_ptr<CollectiveCounts>& counts) {
  const auto group = [&](int64_t rank, int64_t size) {
    return std::make_shared<CountingCollectives>(std::make_unique<MirroredCollectives>(rank, size), counts);
  };
  ProcessGroups groups;
  groups.world = group(rank, dims.world_size);
  const int64_t on_a_node = dims.local_edp_size();
  groups.edp_intra_node = group(dims.edp_rank(rank) % on_a_node, on_a_node);
  groups.edp_inter_node = group(dims.edp_rank(rank) / on_a_node, dims.nodes);
  groups.ep = group(dims.ep_rank(rank), dims.ep_size);
  groups.ep_dispatch = group(dims.ep_rank(rank), dims.ep_size);
  return groups;
}

// The bytes that a rank sends in its first step, by collective.
std::map<std::string, double> sent_by(int64_t rank, const ParallelDims& dims, const RunConfig& config) {
  const auto counts = std::make_shared<CollectiveCounts>();
  Trainer trainer(config, make_model(config), data_for(config), at::kFloat, groups_of(rank, dims, counts));
  trainer.initialise();
  step(trainer);
  trainer.parameters().finish_all_gather();
  std::map<std::string, double> sent;
  for (const auto& [name, traffic] : counts->traffic()) sent[name] = static_cast<double>(traffic.bytes);
  return sent;
}

// The model is as wide as the paper's. A narrower one has too few chunks
// (distributed/sharding/shard_layout.h) to share evenly among 128 ranks.
TEST(Traffic, of_parameters_among_128_ranks_is_within_two_percent_of_the_plan) {
  const RunConfig config = paper_like(2048, 128);
  const std::map<std::string, double> planned = planned_on_sixteen_nodes(config);
  const std::map<std::string, double> sent = sent_by(77, kSixteenNodes, config);
  for (const char* name : {"reduce_scatter", "gather", "step"})
    EXPECT_NEAR(sent.at(name), planned.at(name), 0.02 * planned.at(name)) << name;
}

TEST(Traffic, of_rows_among_128_ranks_is_within_two_percent_of_the_plan) {
  const RunConfig config = paper_like(128, 64);
  const std::map<std::string, double> planned = planned_on_sixteen_nodes(config);
  const std::vector<int64_t> ranks = {0, 13, 26, 39, 84, 97, 110, 123};  // one rank per EP rank
  std::map<std::string, double> mean;
  for (const int64_t rank : ranks) {
    for (const auto& [name, bytes] : sent_by(rank, kSixteenNodes, config))
      mean[name] += bytes / static_cast<double>(ranks.size());
  }
  for (const char* name : {"dispatch", "combine", "step"})
    EXPECT_NEAR(mean.at(name), planned.at(name), 0.02 * planned.at(name)) << name;
}

// The all-gather starts before the next step needs the parameters, so it overlaps with the host's other work.
TEST(Traffic, of_parameters_sets_out_before_they_are_asked_for) {
  for (const ParallelDims& dims : {ep_by_edp(1, 4), ep_by_edp(1, 4, 4)}) {
    const auto counts = std::make_shared<CollectiveCounts>();
    const RunConfig config = tiny();
    Trainer trainer(config, make_model(config), data_for(config), at::kFloat, groups_of(0, dims, counts));
    trainer.initialise();
    step(trainer);
    EXPECT_GT(counts->traffic()["gather"].calls, 0) << dims.nodes << " nodes";
  }
}

}  // namespace
}  // namespace dtopp

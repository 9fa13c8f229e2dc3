// What ranks send each other in a step is what the plan says (dtopp/plan/communication.h).
#include <map>

#include <gtest/gtest.h>

#include "dtopp/plan/plan.h"
#include "tests/distributed/rank_threads.h"
#include "tests/train/tiny_model.h"

namespace dtopp {
namespace {

struct Shape {
  const char* name;
  RankGrid grid;
  void (*change)(RunConfig&);
  at::ScalarType type = at::kFloat;
};

// Every token goes to every rank, so that the rows it takes are known.
void choose_all(RunConfig& config) {
  config.routing.method = RoutingMethod::kTopK;
  config.routing.top_k = config.model.num_experts;
}

const std::vector<Shape> kShapes = {
    {"two ranks", {1, 2}, [](RunConfig&) {}},
    {"four ranks", {1, 4}, [](RunConfig&) {}},
    {"four ranks, wide", {1, 4}, [](RunConfig& c) { c.model.hidden_size = 512; }},
    {"dense",
     {1, 2},
     [](RunConfig& c) {
       c.model.num_experts = 1;
       c.model.ffn_hidden_size = 2048;
       c.routing.target_experts.clear();
     }},
    {"bf16", {1, 2}, [](RunConfig&) {}, at::kBFloat16},
    {"a block of two", {2, 1}, choose_all},
    {"a block of four", {4, 1}, choose_all},
    {"two blocks of two", {2, 2}, choose_all},
    {"two blocks in bf16", {2, 2}, choose_all, at::kBFloat16},
    {"two nodes", {1, 4, 2}, [](RunConfig&) {}},
    {"two nodes of a block", {2, 2, 2}, choose_all},
    {"a block that adds up once a step",
     {2, 1},
     [](RunConfig& c) { choose_all(c), c.parallel.reproducible = false; }},
};

// By collective, of the mean rank in one step.
std::map<std::string, double> measured(const RunConfig& config, const Shape& shape) {
  std::map<std::string, double> mean;
  std::mutex mutex;
  run_ranks(shape.grid.size(), [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    at::set_num_threads(1);
    const auto counts = std::make_shared<CollectiveCounts>();
    Trainer trainer(config, make_model(config), data_for(config), shape.type,
                    make_world(store, rank, shape.grid, on_loopback(), counts));
    trainer.initialise();
    step(trainer);  // the first one also says what losses there are
    const std::map<std::string, Traffic> before = counts->traffic();
    step(trainer);
    const std::lock_guard lock(mutex);
    for (const auto& [name, traffic] : counts->traffic()) {
      const auto earlier = before.find(name);
      const int64_t sent = traffic.bytes - (earlier == before.end() ? 0 : earlier->second.bytes);
      mean[name] += static_cast<double>(sent) / static_cast<double>(shape.grid.size());
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
    const Plan plan = make_plan(
        config,
        {.ranks = shape.grid.size(), .nodes = shape.grid.nodes, .expert_parallel = shape.grid.places});
    const std::map<std::string, double> sent = measured(config, shape);
    double planned_sum = 0, sum = 0;
    for (const CollectiveBytes& planned : by_collective(plan.communication)) {
      const auto found = sent.find(planned.name);
      const double bytes = found == sent.end() ? 0 : found->second;
      const auto expected = static_cast<double>(planned.inside + planned.between);
      // How many losses there are the plan does not know, nor which rank keeps one unit more.
      EXPECT_NEAR(bytes, expected, 0.02 * expected + 512) << planned.name;
      planned_sum += expected;
      sum += bytes;
    }
    EXPECT_NEAR(sum, planned_sum, 0.02 * planned_sum);
    EXPECT_GT(sum, 1e6);
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace dtopp

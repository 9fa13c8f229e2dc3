// Which degree of expert parallelism a run should have: its plans with all that are possible.
#pragma once

#include <string>
#include <vector>

#include "dtopp/device/devices.h"
#include "dtopp/plan/plan.h"

namespace dtopp {

// UsageError where nodes do not divide the ranks, or blocks the ranks of a node or the model's experts.
void check_layout(const RankLayout& layout, const ModelConfig& model);

// The degrees of expert parallelism that are possible on these ranks and nodes, from 1 up.
std::vector<int64_t> possible_expert_parallel(const RankLayout& layout, const ModelConfig& model);

// From degree 1 up; layout.expert_parallel is not looked at.
std::vector<Plan> plans_by_expert_parallel(const RunConfig& config, const RankLayout& layout, Device device);

struct Recommendation {
  int64_t expert_parallel = 1;
  std::string reason{};  // one sentence
  int64_t fastest = 1;   // with the shortest step of those that fit, where the device's rates are known
};

// The first of the plans that fits the device: the fewest ranks that share experts, as rows travel to them;
// where none fits, the one that needs the least memory.
Recommendation recommend(const std::vector<Plan>& plans, const PlanDevice& device);

// The degree of a run on these ranks and nodes: the configuration's, checked (check_layout), or with `auto`
// the recommended one for what a rank has of memory.
int64_t expert_parallel_of(const RunConfig& config, const RankLayout& layout, Device device,
                           uint64_t memory_bytes);

}  // namespace dtopp

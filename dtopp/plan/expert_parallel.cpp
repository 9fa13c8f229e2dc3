#include "dtopp/plan/expert_parallel.h"

#include <algorithm>

#include "dtopp/base/format.h"
#include "dtopp/config/config.h"
#include "dtopp/plan/step_time.h"

namespace dtopp {
namespace {

void require_divides(const char* key, int64_t part, int64_t whole, const char* what) {
  if (whole % part != 0)
    throw InvalidValue(key,
                       std::to_string(part) + " does not divide the " + std::to_string(whole) + " " + what);
}

}  // namespace

void check_layout(const RankLayout& layout, const ModelConfig& model) {
  const char* degree = "parallel.expert_parallel";
  if (layout.ranks < 1) throw InvalidValue("--ranks", "must be at least 1");
  if (layout.nodes < 1) throw InvalidValue("--nodes", "must be at least 1");
  if (layout.expert_parallel < 1) throw InvalidValue(degree, "must be at least 1");
  require_divides("--nodes", layout.nodes, layout.ranks, "ranks");
  require_divides(degree, layout.expert_parallel, layout.node_ranks(), "ranks of a node");
  require_divides(degree, layout.expert_parallel, model.num_experts, "experts of a layer");
}

std::vector<int64_t> possible_expert_parallel(const RankLayout& layout, const ModelConfig& model) {
  std::vector<int64_t> degrees;
  for (int64_t degree = 1; degree <= layout.node_ranks(); ++degree) {
    if (layout.node_ranks() % degree == 0 && model.num_experts % degree == 0) degrees.push_back(degree);
  }
  return degrees;
}

std::vector<Plan> plans_by_expert_parallel(const RunConfig& config, const RankLayout& layout, Device device) {
  check_layout({layout.ranks, layout.nodes}, config.model);
  std::vector<Plan> plans;
  for (const int64_t degree : possible_expert_parallel(layout, config.model))
    plans.push_back(make_plan(config, {layout.ranks, layout.nodes, degree}, device));
  return plans;
}

Recommendation recommend(const std::vector<Plan>& plans, const PlanDevice& device) {
  const auto bytes = [](uint64_t count) { return format_bytes(static_cast<double>(count)); };
  const auto fits = [&](const Plan& plan) { return plan.memory_bytes() <= device.memory_bytes; };
  const std::string room = bytes(device.memory_bytes) + " of " + device.name;
  const auto first = std::ranges::find_if(plans, fits);
  if (first == plans.end()) {
    const Plan& least =
        *std::ranges::min_element(plans, {}, [](const Plan& plan) { return plan.memory_bytes(); });
    const int64_t degree = least.layout.expert_parallel;
    return {degree, "none fits the " + room + "; this one needs the least, " + bytes(least.memory_bytes()),
            degree};
  }
  const int64_t degree = first->layout.expert_parallel;
  Recommendation best = {degree, bytes(first->memory_bytes()) + " fit the " + room, degree};
  best.reason +=
      first == plans.begin()
          ? ", so no rows have to be exchanged"
          : ", the fewest ranks that do: " + std::to_string(std::prev(first)->layout.expert_parallel) +
                " would need " + bytes(std::prev(first)->memory_bytes());
  if (!device.rates) return best;
  const auto seconds = [&](const Plan& plan) { return plan_step_time(plan, *device.rates).seconds(); };
  double shortest = seconds(*first);
  for (const Plan& plan : plans) {
    if (!fits(plan) || seconds(plan) >= shortest) continue;
    shortest = seconds(plan);
    best.fastest = plan.layout.expert_parallel;
  }
  if (best.fastest != degree)
    best.reason += "; " + std::to_string(best.fastest) + " would have the shortest step";
  return best;
}

int64_t expert_parallel_of(const RunConfig& config, const RankLayout& layout, Device device,
                           uint64_t memory_bytes) {
  RankLayout wanted = layout;
  wanted.expert_parallel = config.parallel.expert_parallel.ranks.value_or(1);
  check_layout(wanted, config.model);
  if (config.parallel.expert_parallel.ranks || layout.ranks == 1) return wanted.expert_parallel;
  return recommend(plans_by_expert_parallel(config, layout, device), {.memory_bytes = memory_bytes})
      .expert_parallel;
}

}  // namespace dtopp

// Recommends a degree of expert parallelism for a run, by the plans for all possible degrees.
#pragma once

#include <string>
#include <vector>

#include "dtopp/device/known_devices.h"
#include "dtopp/plan/plan.h"

namespace dtopp::plan {

// Estimates the time of an optimizer step on a device with assumed rates (device/known_devices.h). Nothing is
// measured; latencies do not count.

// Seconds of the busiest rank.
struct StepTime {
  double compute = 0;  // FLOPs of its tokens / FLOP/s; a third of the model's FLOPs are forward
  double rows = 0;     // rows to other ranks' experts and back; nothing hides them
  // Gradient communication that the backward pass of the last micro-step does not hide (within the EP group:
  // of all micro-steps): the seconds beyond 90 % of the pass, at least those of the last bucket.
  double gradients = 0;
  double parameters = 0;  // the same for parameters and the first forward pass
  double update = 0;      // 30 bytes per parameter that the rank keeps / bytes per second of its memory
  double mfu = 0;         // model FLOPs divided by what all devices could compute in the step

  double seconds() const { return compute + rows + gradients + parameters + update; }
};

StepTime plan_step_time(const Plan& plan, const device::DeviceRates& rates);

// Throws UsageError if nodes do not divide the ranks, or if EP groups do not divide the ranks of a node or
// the model's experts.
void check_dims(const distributed::ParallelDims& dims, const config::ModelConfig& model);

// The possible degrees of expert parallelism on these ranks and nodes, from 1 up.
std::vector<int64_t> possible_expert_parallel(const distributed::ParallelDims& dims,
                                              const config::ModelConfig& model);

// Plans for all possible degrees, from 1 up. It ignores dims.ep_size.
std::vector<Plan> plans_by_expert_parallel(const config::RunConfig& config,
                                           const distributed::ParallelDims& dims, config::Device device);

struct Recommendation {
  int64_t expert_parallel = 1;
  std::string reason{};  // one sentence
  // Degree with the shortest step among those that fit, if the device's rates are known.
  int64_t fastest = 1;
};

// Recommends the first plan that fits the device. It sends the fewest rows, because the
// fewest ranks share experts. If none fits, it recommends the plan that needs the least memory.
Recommendation recommend(const std::vector<Plan>& plans, const device::PlanDevice& device);

// The degree for a run on these ranks and nodes: the configured one, checked by check_dims. With `auto` it
// is the recommended one for `memory_bytes` of memory per rank.
int64_t expert_parallel_of(const config::RunConfig& config, const distributed::ParallelDims& dims,
                           config::Device device, uint64_t memory_bytes);

}  // namespace dtopp::plan

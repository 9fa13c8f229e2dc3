// Estimates the time of an optimizer step on a device with assumed rates (device/known_devices.h). Nothing is
// measured; latencies do not count.
#pragma once

#include "dtopp/device/known_devices.h"
#include "dtopp/plan/plan.h"

namespace dtopp::plan {

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

}  // namespace dtopp::plan

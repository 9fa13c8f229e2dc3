// Estimates the time of an optimizer step on a device with assumed rates; nothing is measured. Formulas:
// docs/plan.md.
#pragma once

#include "dtopp/device/known_devices.h"
#include "dtopp/plan/plan.h"

namespace dtopp::plan {

// Seconds of the busiest rank.
struct StepTime {
  double compute = 0;     // forward and backward
  double rows = 0;        // rows to other ranks' experts and back; nothing hides them
  double gradients = 0;   // gradient communication that the backward passes do not hide
  double parameters = 0;  // parameter communication that the first forward pass does not hide
  double update = 0;      // optimizer
  double mfu = 0;         // model FLOPs divided by what all devices could compute in the step

  double seconds() const { return compute + rows + gradients + parameters + update; }
};

StepTime plan_step_time(const Plan& plan, const device::DeviceRates& rates);

}  // namespace dtopp::plan

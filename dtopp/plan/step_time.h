// How long an optimiser step takes on a device whose rates are assumed: an estimate, no measurement.
// Formulas: docs/plan.md.
#pragma once

#include "dtopp/device/devices.h"
#include "dtopp/plan/plan.h"

namespace dtopp {

// Seconds of the busiest rank.
struct StepTime {
  double compute = 0;     // forward and backward
  double rows = 0;        // rows to other ranks' experts and back: nothing hides them
  double gradients = 0;   // what the backward passes do not hide of them
  double parameters = 0;  // what the first forward pass does not hide of them
  double update = 0;      // the optimiser
  double mfu = 0;         // FLOPs of the model over what all devices could have done in the step

  double seconds() const { return compute + rows + gradients + parameters + update; }
};

StepTime plan_step_time(const Plan& plan, const DeviceRates& rates);

}  // namespace dtopp

// Reports an optimizer step, and copies its numbers to the host without blocking.
//
// A step leaves its numbers on the device and starts one copy of them. The host reads the copy later, while
// the device computes the next step:
//
// host    issue 1 | issue 2 | read 1 | issue 3 | read 2 | issue 4 | …
// device          |---- step 1 ----|---- step 2 ----|---- step 3 ----| …
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtopp/train/step_sums.h"

namespace dtopp::train {

struct StepResult {
  int64_t step = 0;                                    // counts from 1
  int64_t tokens = 0;                                  // trained on so far, including this step
  int64_t assignments = 0;                             // token-expert pairs so far, in all layers
  int64_t sample_position = 0;                         // index of the next sample in the global order
  double loss = 0;                                     // total, weighted
  std::vector<std::pair<std::string, double>> losses;  // unweighted, one per term
  double grad_norm = 0;                                // before clipping
  double lr = 0;
  bool skipped = false;           // not finite: only the position has changed
  int64_t skipped_steps = 0;      // so far, including this step
  int64_t consecutive_skips = 0;  // of these, the last ones in a row
  // Router::metrics of the step: "threshold", the p used, …; one value per routed layer, or one for all.
  std::vector<std::pair<std::string, std::vector<double>>> router;
  bool may_select_none = false;  // whether a token may have no expert
  std::vector<double> scales;    // theta used, per routed layer; empty unless dynamic
  moe::ActivationStatistics activations;
  std::vector<int64_t> max_assignments_L;  // most token-expert pairs in a micro-batch, per routed layer
  bool overflowed = false;                 // this step or one before it exceeded its capacity
  bool stop_requested = false;             // on any rank, during the step
  double seconds = 0;                      // of the whole step
  double data_seconds = 0;                 // of these, waiting for data

  // The unweighted loss with this name. Throws std::invalid_argument if there is none.
  double loss_named(std::string_view name) const;
  // The router's values with this name; null if there are none.
  const std::vector<double>* router_values(std::string_view name) const;
};

// Begins the names of Router::metrics() among the numbers of a step.
inline constexpr char kRouterMetric[] = "router/";

// A step whose numbers are on their way to the host.
class StepInFlight {
 public:
  // `known` holds the values that the host knows when the step is issued. `numbers` are those of the schema
  // and "applied", "scale" and the router's metrics. begun and issued: seconds of a steady clock.
  StepInFlight(StepResult known, StepShape shape, const StepNumbers& numbers, double begun, double issued)
      : known_(std::move(known)), shape_(std::move(shape)), copy_(numbers), begun_(begun), issued_(issued) {}

  double begun() const { return begun_; }
  // How long the host took to issue the step.
  double issue_seconds() const { return issued_ - begun_; }

  // Waits for the copy and returns the step's result.
  StepResult read() const;

 private:
  StepResult known_;
  StepShape shape_;
  StepNumbers::Copy copy_;
  double begun_, issued_;
};

}  // namespace dtopp::train

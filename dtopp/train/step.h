// The numbers of an optimizer step: measured by each rank, all-reduced, and decided on.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/distributed/collectives.h"
#include "dtopp/moe/activation_statistics.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/core/named_tensors.h"

namespace dtopp::train {

// The properties of a step that the host knows before its numbers arrive, the same on every rank.
struct StepShape {
  std::vector<std::string> loss_names;
  int64_t micro_batches = 0, tokens = 0;  // of all ranks
  int64_t routed_layers = 0, num_experts = 0;
  std::vector<int64_t> statistics_shape = {0}, logit_sums_shape = {0};  // of the router (moe/router.h)
};

// The numbers of a step, on the device. Whether to apply a step depends on these only, and all_reduce() gives
// every rank the same ones, so all ranks decide alike. It returns f64; whole numbers are exact below 2^53. M:
// micro-batches of the step, N: the total and each loss term, C: chunks, L: routed layers.
struct StepNumbers {
  // Each comment states the numbers of one rank, and then those of all ranks.
  Tensor losses;        // [M, N], rows of other ranks are zero; then [N], the sum of the rows
  Tensor grad_squares;  // [C], chunks of other ranks are zero; then [], the sum
  Tensor
      overflowed;  // [], 1 if this step or one before it exceeded a capacity; then the number of these ranks
  Tensor stop_requested;          // [], 1 if a stop is requested; then the number of these ranks
  Tensor max_assignments_L;       // most token-expert pairs in a micro-batch; then the maximum
  Tensor activations;             // ActivationStatistics::to_vector; then the sum
  Tensor statistics, logit_sums;  // of the router; then the sums

  // Set after the all-reduce.
  Tensor applied;            // StepDecision
  Tensor scale_L;            // theta used; empty unless dynamic
  ops::NamedTensors router;  // Router::metrics
};

// One all-reduce of all numbers. Every rank's tensors have the same shapes. Collective.
StepNumbers all_reduce(const StepNumbers& of_rank, distributed::Collectives& ranks);

// Adds up the results of a rank's forward and backward passes in one step, on its device.
struct StepSums {
  // Per micro-batch: its index in the step, and f64 [1 + terms] with the total first.
  std::vector<std::pair<int64_t, Tensor>> losses;
  // int64: the largest number of token-expert pairs in a micro-batch, per layer; [0] for a dense model.
  Tensor max_assignments_L;
  moe::ActivationStatistics activations;
  // int64, of the router; undefined before the first, and if the router needs none.
  Tensor statistics, logit_sums;
  double data_seconds = 0;  // time spent waiting for data
  bool stop_requested = false;

  // Adds the losses of a micro-batch. total and terms: f32 [], detached.
  void add_losses(int64_t micro_batch, const Tensor& total, const ops::NamedTensors& terms);
  // Each may be undefined: none.
  void add_statistics(const Tensor& of_micro_batch, const Tensor& logit_sums_of_micro_batch);

  // Numbers that this rank lacks are zero. squared_norms: of the gradients, f64 [chunks]; each is 0 on all
  // ranks but one. overflowed: bool [], see StepResult.
  StepNumbers numbers(const StepShape& shape, const Tensor& squared_norms, const Tensor& overflowed) const;
};

// Reports an optimizer step. A step leaves its numbers on the device and starts one copy of them. The host
// reads the copy later, while the device computes the next step:
//
// host    issue 1 | issue 2 | read 1 | issue 3 | read 2 | issue 4 | …
// device          |---- step 1 ----|---- step 2 ----|---- step 3 ----| …
struct StepResult {
  int64_t step = 0;                                    // counts from 1
  int64_t tokens = 0;                                  // trained on so far, including this step
  int64_t assignments = 0;                             // token-expert pairs so far, in all layers
  int64_t sample_position = 0;                         // index of the next sample in the global order
  double loss = 0;                                     // total, weighted
  std::vector<std::pair<std::string, double>> losses;  // unweighted, one per term
  double grad_norm = 0;                                // before clipping
  double lr = 0;
  bool skipped = false;           // not finite, or the norm too large: only the position has changed
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

  // The router's values with this name; null if there are none.
  const std::vector<double>* router_values(std::string_view name) const;
};

// A step whose numbers are on their way to the host.
class StepInFlight {
 public:
  // `known` holds the values that the host knows when the step is issued. begun and issued: seconds of a
  // steady clock.
  StepInFlight(StepResult known, StepShape shape, StepNumbers numbers, double begun, double issued);

  double begun() const { return begun_; }
  // How long the host took to issue the step.
  double issue_seconds() const { return issued_ - begun_; }

  // Waits for the copy and returns the step's result.
  StepResult read() const;

 private:
  StepResult known_;
  StepShape shape_;
  StepNumbers numbers_;  // on the device
  ops::HostCopy copy_;   // one for all numbers: the fixed cost of a copy exceeds its transfer time
  double begun_, issued_;
};

// Whether the step is abandoned before its numbers are complete. With several ranks it never is: the other
// ranks wait for it, so it is finished, and its numbers report the request to stop.
inline bool is_abandoned(const StepSums& sums, int64_t ranks) { return sums.stop_requested && ranks == 1; }

// Tensors on the step's device; the host does not wait for them.
struct StepDecision {
  Tensor applied;  // bool []: update parameters and controller; if false, only the position advances
  Tensor divisor;  // f32 []: the gradients are divided by it
};

// Applies the step if loss, gradients and the squares of the gradients are finite and no capacity was
// exceeded. Clips the gradients' norm to optimizer.grad_clip.
StepDecision decide(const StepNumbers& numbers, const config::OptimizerConfig& config);

// Whether this step and all later ones must run again from the state before it. Requires the step's numbers.
inline bool must_run_again(const StepResult& result) { return result.overflowed; }

// Whether the run ends because too many steps in a row were not finite.
inline bool gives_up(const StepResult& result, const config::TrainingConfig& config) {
  return result.skipped && result.consecutive_skips > config.max_skips;
}

}  // namespace dtopp::train

// The numbers of an optimiser step, and their way to the host: a step leaves them on its device and ends; the
// host reads them when they have come.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dtopp/moe/activation_statistics.h"
#include "dtopp/ops/host_copy.h"

namespace dtopp {

struct StepResult {
  int64_t step = 0;                                    // counts from 1
  int64_t tokens = 0;                                  // trained on so far, this step's included
  double loss = 0;                                     // total, weighted
  std::vector<std::pair<std::string, double>> losses;  // unweighted, one a term
  double grad_norm = 0;                                // before clipping
  double lr = 0;
  bool skipped = false;            // non-finite: nothing was changed but the position
  int64_t skipped_steps = 0;       // so far, this one included
  int64_t consecutive_skips = 0;   // of which the last ones in a row
  std::vector<double> thresholds;  // p used, one a routed layer
  std::vector<double> scales;      // theta used, one a routed layer; empty unless dynamic
  ActivationStatistics activations;
  std::vector<int64_t> most_pairs_L;  // token-expert pairs of a micro-batch, at most; one a routed layer
  bool halted = false;                // it, or one before it, had no room for its pairs: it must run again
  double seconds = 0;                 // the whole step
  double data_seconds = 0;            // of which waiting for data
};

// The sum of the losses of micro-batches, every one with the same number of tokens.
class LossSums {
 public:
  // total and the terms: f32 [], detached.
  void add(const at::Tensor& total, const std::vector<std::pair<std::string, at::Tensor>>& terms);
  const std::vector<std::string>& names() const { return names_; }
  const at::Tensor& sums() const { return sums_; }  // f64 [1 + terms]: the total first
  int64_t micro_batches() const { return micro_batches_; }

 private:
  std::vector<std::string> names_;
  at::Tensor sums_;
  int64_t micro_batches_ = 0;
};

// What a step leaves on its device.
struct StepNumbers {
  LossSums losses;
  at::Tensor grad_norm;                         // []
  at::Tensor applied;                           // bool []
  at::Tensor halted;                            // bool []
  at::Tensor most_pairs_L;                      // int64, of a micro-batch; [0] of a dense model
  at::Tensor threshold_C;                       // used
  at::Tensor scale_L;                           // used; [0] unless dynamic
  at::Tensor new_threshold_C, new_error_sum_C;  // of the coming step
  ActivationStatistics activations;
};

class StepInFlight {
 public:
  // `known`: what the host knows of the step when it has been issued. begun: seconds of a steady clock.
  StepInFlight(StepResult known, const StepNumbers& numbers, double begun);

  bool arrived() const { return copy_.ready(); }
  double begun() const { return begun_; }

  struct Arrival {
    StepResult result;
    std::vector<double> thresholds, error_sums;  // the controller's state after the step
  };
  // Waits for the numbers.
  Arrival read() const;

 private:
  StepResult known_;
  std::vector<std::string> loss_names_;
  int64_t micro_batches_, routed_layers_, controllers_, scales_, tokens_, num_experts_ = 0;
  HostCopy copy_;
  double begun_;
};

}  // namespace dtopp

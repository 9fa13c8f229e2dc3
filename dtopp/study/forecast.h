// Estimates the cost of a study: FLOPs and hours per run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtopp/study/expansion.h"
#include "dtopp/study/run_folder.h"

namespace dtopp::study {

// The cost of all training and validation of a run.
struct RunCost {
  double flops = 0;
  double matrix_rate = 0;  // this machine's FLOP/s in matrix products, in the run's precision
};

// The share of the matrix rate that training reaches: the mean, over done runs, of the median
// throughput/tflops beside the run's RunCost::matrix_rate. Without done runs it is 0.4; small models on CPUs
// reached 0.28 to 0.67.
struct ReachedShare {
  double share = 0.4;
  int64_t runs = 0;  // number of runs it was measured in
};
ReachedShare reached_share(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                           const std::vector<RunCost>& costs);

// Returns the FLOPs of training and validation. A validation token costs a third of a training token, because
// it has no backward pass. Validations run before the first step, every validation.every steps and after the
// last step.
double flops_of(const config::RunConfig& config, double flops_per_token, double tokens_per_step);

// Returns a table with one line per run (name, status, steps, remaining FLOPs and hours) and the totals.
std::string forecast_table(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                           const std::vector<RunCost>& costs, const ReachedShare& reached);

}  // namespace dtopp::study

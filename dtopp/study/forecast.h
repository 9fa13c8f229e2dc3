// What a study will cost: its runs, their arithmetic, the hours they take.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtopp/study/expansion.h"
#include "dtopp/study/run_folder.h"

namespace dtopp {

// Of all training and validation of a run.
struct RunCost {
  double flops = 0;
  double matrix_rate = 0;  // FLOP/s that this machine multiplies matrices with, in the run's precision
};

// Of the matrix rate, what training reaches: the mean throughput/mfu of those runs that are done, else what
// small models on CPUs were seen to reach (0.28 to 0.67).
struct ReachedShare {
  double share = 0.4;
  int64_t runs = 0;  // that it was measured in
};
ReachedShare reached_share(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records);

// FLOPs of training, a third of them for each token of a validation: before the first step, every
// validation.every steps and after the last one.
double flops_of(const RunConfig& config, double flops_per_token, double tokens_per_step);

// A line a run (name, status, steps, FLOPs and hours that are left), then the sums.
std::string forecast_table(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                           const std::vector<RunCost>& costs, const ReachedShare& reached);

}  // namespace dtopp

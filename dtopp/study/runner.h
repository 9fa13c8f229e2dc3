// Executes the runs of a study, each in its own process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dtopp/study/expansion.h"
#include "dtopp/study/run_folder.h"

namespace dtopp {

struct RunnerOptions {
  int64_t slots = 1;                // number of concurrent runs
  std::filesystem::path program{};  // the executable; empty: this program
  int64_t threads = 0;              // for each run whose configuration sets none; 0: all cores
  std::vector<double> costs{};      // cost per run in any unit; progress is their completed share
  std::function<void(const std::string&)> log{};
  // Called after each run that has ended, successfully or not.
  std::function<void()> ended{};
};

// Starts `dtopp train` for every run whose record is not done, in order.
//
// `records` holds one record per run, from read_record. They and the records in the folders are updated. A
// failed run does not end the study; the next call retries it. Standard output and error of a run are
// appended to its console.log.
//
// The first SIGTERM or SIGINT is forwarded to all runs, which save a checkpoint and stop; no further run is
// started. A second signal at least a tenth of a second later kills them. All runs are killed if the calling
// thread ends.
//
// Returns: whether a signal stopped the study
// Throws:  ResourceError if a process cannot be started; no run is left running
bool run_all(const std::vector<StudyRun>& runs, std::vector<RunRecord>& records,
             const RunnerOptions& options);

}  // namespace dtopp

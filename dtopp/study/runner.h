// Runs a study's runs, each in a process of its own.
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
  int64_t slots = 1;                // runs at the same time
  std::filesystem::path program{};  // this one where it is empty
  int64_t threads = 0;              // of each run whose configuration names no number; 0: all cores
  std::vector<double> costs{};      // of each run, in any unit: what progress is counted in
  std::function<void(const std::string&)> say{};
  // After each run that ended, whatever way.
  std::function<void()> ended{};
};

// Starts `dtopp train` for every run whose record is not done, in their order, and keeps `records` (one a
// run, as read_record gives them) and those in the folders. A run that fails is that run's alone, and is
// tried again by the next call. Standard output and error of a run go to its console.log.
//
// SIGTERM and SIGINT go to all runs once, which save and stop; nothing is started then. A second one, a tenth
// of a second or more after the first, kills them. Runs die with the calling thread. Returns whether it was
// stopped. ResourceError where a process cannot be started, with no run left.
bool run_all(const std::vector<StudyRun>& runs, std::vector<RunRecord>& records,
             const RunnerOptions& options);

}  // namespace dtopp

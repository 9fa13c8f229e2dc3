// Runs a training in its directory, with locking, resuming and stopping:
//
// <output>/config.yaml  metrics.jsonl  events.out.tfevents.*  checkpoints/step-XXXXXXXX/
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "dtopp/base/console_log.h"
#include "dtopp/train/periodic.h"
#include "dtopp/train/step_meter.h"

namespace dtopp {

struct RunSummary {
  std::filesystem::path directory;
  std::filesystem::path checkpoint;  // the final checkpoint
  int64_t steps = 0;
  int64_t tokens = 0;
  bool already_complete = false;
};

// Reports the beginning of an activity: a "step" of that number, or a "validation", "evaluation", "save" or
// "report" after it. May be empty.
using BeginActivity = std::function<void(int64_t step, const char* activity)>;

// Trains to config.training.steps, resuming from the newest valid checkpoint in config.output.
//
// The ranks of `groups` train together on `groups.device`, with the same configuration and data. Only rank 0
// writes to the run's directory and to `log`. After a request to stop, the run saves its state and throws
// Stopped.
//
// Throws:        RanksDiffer (distributed/groups/rank_agreement.h) if configurations or data differ;
//                UsageError if the directory holds a run with another configuration or another process writes
//                it; NumericalError after training.max_skips non-finite steps in a row; DataError if a file
//                cannot be read or written
// Collective:    every rank of `groups`
RunSummary run_training(const RunConfig& config, const ConsoleLog& log, const StopToken& stop,
                        const std::vector<std::unique_ptr<Periodic>>& evaluations,
                        const ProcessGroups& groups, const BeginActivity& begin);

}  // namespace dtopp

// Runs a training in its directory, with locking, resuming and stopping:
//
// <output>/config.yaml  metrics.jsonl  events.out.tfevents.*  checkpoints/step-XXXXXXXX/
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtopp/train/step_meter.h"
#include "dtopp/train/trainer.h"

namespace dtopp {

// Accuracies by task, measured by all ranks together at each validation, with the fp32 parameters and the
// current thresholds. NaN if the model's numbers are not finite; nullopt, on all ranks, if any rank was asked
// to stop.
using ProbeResults = std::vector<std::pair<std::string, double>>;
using Probes =
    std::function<std::optional<ProbeResults>(const ParameterLookup&, const RoutingInputs&, Collectives&)>;

// Draws samples every `every` steps and after the last step; 0: never. Uses the EMA of the parameters if the
// model has one. All ranks draw; only rank 0 writes.
struct Drawing {
  int64_t every = 0;
  std::function<void(int64_t step, const ParameterLookup&, const RoutingInputs&, bool writes)> draw{};
  std::function<bool(int64_t step)> is_drawn{};  // queried on rank 0
};

// Additional work of a run; members may be empty.
struct RunExtras {
  Probes probes{};
  Drawing drawing{};
};

// Callbacks that report a run's progress; members may be empty.
struct RunObserver {
  std::function<void(const std::string&)> message;
  std::function<void(int64_t step, const StepResult&, const StepRates&)> step;
  // `loss` is null without validation data.
  std::function<void(int64_t step, const ValidationResult* loss, const ProbeResults&)> validation;
  // Called on every rank when an activity begins: a "step" of that number, or a "validation", "save",
  // "drawing" or "report" after it.
  std::function<void(int64_t step, const char* activity)> begin;
};

struct RunSummary {
  std::filesystem::path directory;
  std::filesystem::path checkpoint;  // the final checkpoint
  int64_t steps = 0;
  int64_t tokens = 0;
  bool already_complete = false;
};

// Trains to config.training.steps, resuming from the newest valid checkpoint in config.output.
//
// The ranks of `groups` train together on `groups.device`, with the same configuration and data. Only rank 0
// writes to the run's directory and calls the observer, except RunObserver::begin. `stop` is polled between
// micro-batches. When it returns true, the run saves its state and throws Stopped.
//
// Throws:        RanksDiffer (distributed/groups/rank_agreement.h) if configurations or data differ;
// UsageError if the
//                directory holds a run with another configuration or another process writes it;
//                NumericalError after training.max_skips non-finite steps in a row; DataError if a file
//                cannot be read or written
// Collective:    every rank of `groups`
RunSummary run_training(const RunConfig& config, const RunObserver& observer,
                        const std::function<bool()>& stop, const RunExtras& extras = {},
                        const ProcessGroups& groups = {});

}  // namespace dtopp

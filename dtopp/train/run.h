// A training run in its directory: locked, resumable, stoppable.
//   <output>/config.yaml  metrics.jsonl  events.out.tfevents.*  checkpoints/step-XXXXXXXX/
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtopp/train/step_meter.h"
#include "dtopp/train/trainer.h"

namespace dtopp {

// Accuracies by task, measured at each validation from the fp32 parameters and the thresholds of the moment
// by all ranks together; NaN where the model's numbers are not finite; nullopt, on every one, where a stop
// was asked for on any.
using ProbeResults = std::vector<std::pair<std::string, double>>;
using Probes =
    std::function<std::optional<ProbeResults>(const ParameterLookup&, const RoutingInputs&, Collectives&)>;

// What is drawn every `every` steps and after the last one, with the parameters' moving averages where they
// are kept: by all ranks, of which rank 0 alone writes. 0: never.
struct Drawing {
  int64_t every = 0;
  std::function<void(int64_t step, const ParameterLookup&, const RoutingInputs&, bool writes)> draw{};
  std::function<bool(int64_t step)> is_drawn{};  // asked of rank 0
};

// What a run does besides training; all may be empty.
struct RunExtras {
  Probes probes{};
  Drawing drawing{};
};

// What a run tells its caller while it goes on; all may be empty.
struct RunObserver {
  std::function<void(const std::string&)> message;
  std::function<void(int64_t step, const StepResult&, const StepRates&)> step;
  // `loss` is null where there is no validation data.
  std::function<void(int64_t step, const ValidationResult* loss, const ProbeResults&)> validation;
  // Of every rank: what it begins, a "step" of that number, or a "validation", "save", "drawing" or "report"
  // after it.
  std::function<void(int64_t step, const char* activity)> begin;
};

struct RunSummary {
  std::filesystem::path directory;
  std::filesystem::path checkpoint;  // the final one
  int64_t steps = 0;
  int64_t tokens = 0;
  bool already_complete = false;
};

// The process's place: of the ranks of `world`, which train together, rank 0 alone writes to the run's
// directory and tells the observer anything but what it begins. All have the same configuration and data
// (RanksDiffer of distributed/groups/rank_agreement.h where one has not), and compute on `world.device`.
//
// Trains to config.training.steps, resuming from the newest valid checkpoint in config.output. `stop` is
// polled between micro-batches; once true, the state is saved and Stopped is thrown. UsageError when the
// directory holds another configuration's run or another process writes it; NumericalError after
// training.max_skips non-finite steps in a row; DataError when something cannot be read or written.
RunSummary run_training(const RunConfig& config, const RunObserver& observer,
                        const std::function<bool()>& stop, const RunExtras& extras = {},
                        const World& world = {});

}  // namespace dtopp

// Work that a run repeats between its steps, such as tasks or sample grids (eval/in_training).
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtopp/base/stop_token.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {

// Names and values: {"hellaswag/accuracy", 0.31} becomes eval/hellaswag/accuracy in metrics.jsonl.
using Measurements = std::vector<std::pair<std::string, double>>;

// An evaluation must not change training results: run() draws no random numbers of the training and leaves
// the trainer as it was.
class Periodic {
 public:
  virtual ~Periodic() = default;

  // Whether to run at this state, the same on all ranks; is_last: after the run's last step.
  virtual bool is_due(const checkpoint::TrainingState& state, bool is_last) const = 0;
  // Whether an earlier process of the run has stored the results. Called on resuming; rank 0 decides.
  virtual bool is_done(const checkpoint::TrainingState& /*state*/) const { return false; }
  // Returns nullopt, on all ranks, if a stop is requested on any rank. Rank 0's measurements are logged.
  // Collective.
  virtual std::optional<Measurements> run(Trainer& trainer, const StopToken& stop) = 0;
};

}  // namespace dtopp::train

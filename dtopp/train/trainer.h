// One optimiser step, and validation: the numbers of training, without files, signals or printing.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtopp/train/parameter_store.h"
#include "dtopp/train/task.h"

namespace dtopp {

struct StepResult {
  double loss = 0;                                     // total, weighted
  std::vector<std::pair<std::string, double>> losses;  // unweighted, one a term
  double grad_norm = 0;                                // before clipping
  double lr = 0;
  bool skipped = false;            // non-finite: nothing was changed but the position
  std::vector<double> thresholds;  // p used, one a routed layer
  std::vector<double> scales;      // theta used, one a routed layer; empty unless dynamic
  ActivationStatistics activations;
  double seconds = 0;       // the whole step
  double data_seconds = 0;  // of which waiting for data
};

struct ValidationResult {
  double loss = 0;  // mean cross entropy in nats a token
  ActivationStatistics activations;
};

class Trainer {
 public:
  // compute_type: at::kFloat or at::kBFloat16.
  Trainer(const RunConfig& config, TrainingTask task, at::ScalarType compute_type);

  void initialise();
  void restore(const Checkpoint& checkpoint);

  // Runs the next step. nullopt when `stop` became true between micro-batches: the step is undone (nothing
  // has changed) and can be run again.
  std::optional<StepResult> step(const std::function<bool()>& stop);
  // Mean over the first `tokens` held-out tokens. nullopt when `stop` became true.
  std::optional<ValidationResult> validate(int64_t tokens, const std::function<bool()>& stop) const;

  // The validation at the current step is recorded; a resumed run will not repeat it.
  void mark_validated() { state_.last_validation_step = state_.step; }

  const TrainingState& state() const { return state_; }
  // The thresholds of the coming step.
  RoutingInputs routing() const { return routing_inputs(controller_, task_.num_routed_layers); }
  const ParameterStore& parameters() const { return store_; }
  const TrainingTask& task() const { return task_; }

 private:
  // What the step that begins now uses, recorded in its result.
  void record_inputs(const RoutingInputs& inputs, StepResult& result) const;
  // Runs the model forward and backward over the step's micro-batches; false when `stop` became true.
  bool accumulate_gradients(const RoutingInputs& inputs, const std::function<bool()>& stop,
                            StepResult& result);
  // Ends a step whose gradients are there: updates parameters and controller, or skips where anything is not
  // finite.
  void apply_gradients(StepResult& result);
  void record_controller();

  RunConfig config_;
  TrainingTask task_;
  ParameterStore store_;
  std::function<BatchLosses(const at::Tensor&, const RoutingInputs&)> losses_;
  ThresholdController controller_;
  TrainingState state_;
};

}  // namespace dtopp

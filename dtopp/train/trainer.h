// One optimiser step, and validation: the numbers of training, without files, signals or printing.
//
// A step is issued to the device and its numbers are read when they have come, so that the host can go on: it
// never waits for the device between the beginning of a step's forward pass and the end of its update.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/distributed/groups/world.h"
#include "dtopp/models/batch.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/model.h"
#include "dtopp/models/validation_sums.h"
#include "dtopp/moe/pair_limits.h"
#include "dtopp/optim/parameter_store.h"
#include "dtopp/train/step_result.h"

namespace dtopp {

class Trainer {
 public:
  // compute: at::kFloat or at::kBFloat16, and the device. The ranks of `world` train together, each with a
  // trainer; every call but the const ones that are not marked is collective: all ranks make the same ones.
  Trainer(const RunConfig& config, Model model, TrainingData data, const at::TensorOptions& compute,
          World world = {});

  // Step 0, with parameters from the seed, or a checkpoint's.
  void initialise();
  void initialise_from(const Checkpoint& checkpoint);
  // Where a run goes on from: CheckpointError where something is missing.
  void restore(const Checkpoint& checkpoint);

  // Issues the next step. false when `stop` became true between micro-batches: the step is undone (nothing
  // has changed) and can be run again. With several ranks it is finished, and its result says so. Where a
  // rank's device has too little memory, it cuts its micro-batches from this step on into the next larger
  // number of equal parts (StepResult::parts_R); c10::OutOfMemoryError where they cannot be cut, or ranks
  // share experts.
  bool step(const std::function<bool()>& stop);
  // The result of the earliest step that has not been given out, which is waited for; nullopt where no more
  // than `in_flight` steps are out. Also nullopt where that step had no room for its pairs: it and those
  // after it have changed nothing, and state() is the one before it.
  std::optional<StepResult> next_result(size_t in_flight);
  // From now on room for a layer's pairs is that of the last result times margin; 0: what each micro-batch
  // needs, which a device other than the CPU makes the host wait for. At first kPairMargin there, 0 on a CPU
  // and where ranks share experts.
  void predict_pairs(double margin) { pair_limits_ = PairLimits(margin); }
  // Mean over the first `tokens` held-out tokens, batch b on rank b modulo their number. nullopt, on
  // all of them, when `stop` became true on one. Collective.
  std::optional<ValidationResult> validate(int64_t tokens, const std::function<bool()>& stop);
  // While `body` runs, parameters() are their moving averages. Only where the model keeps them. Collective.
  void with_average(const std::function<void()>& body);

  // The validation at the current step is recorded; a resumed run will not repeat it.
  void mark_validated() { state_.last_validation_step = state_.step; }

  // Of the steps whose results have been given out; step, tokens and position of those issued. A checkpoint
  // therefore takes it after the last result.
  const TrainingState& state() const { return state_; }
  // The thresholds of the coming step.
  RoutingInputs routing() const { return routing_inputs(controller_, model_.num_routed_layers); }
  // The same with who computes the experts: for parameters() as they are computed with.
  RoutingInputs training_inputs() const;
  const ParameterStore& parameters() const { return store_; }
  const Model& model() const { return model_; }
  const TrainingData& data() const { return data_; }
  Collectives& ranks() const { return *world_.all; }
  int64_t step_tokens() const { return config_.training.global_batch_size * model_.tokens_per_sample; }

 private:
  int64_t micro_batches() const {
    return config_.training.global_batch_size / config_.training.micro_batch_size;
  }
  // What all ranks know of a step's numbers.
  StepShape step_shape() const;
  MassSampling mass_sampling() const;
  // theta of each routed layer; [0] unless dynamic.
  at::Tensor scales() const;
  // Runs the model forward and backward over this rank's micro-batches, until `stop` becomes true.
  void accumulate_gradients(const RoutingInputs& inputs, const std::function<bool()>& stop, StepSums& sums);
  StepSums accumulate_what_fits(RoutingInputs& inputs, const std::function<bool()>& stop);
  bool cut_micro_batches();
  // What a layer's pairs of one part of a micro-batch have room for.
  std::vector<int64_t> pair_rooms_L() const;
  void accumulate_part(int64_t micro_batch, int64_t part, const RoutingInputs& inputs, StepSums& sums);
  // What this rank does while others of its block have a micro-batch or validate, and it has none: its
  // experts serve them.
  void serve_experts(const RoutingInputs& inputs) const;
  std::optional<ValidationResult> validate_with(const RoutingInputs& inputs, int64_t samples,
                                                const std::function<bool()>& stop) const;
  // With thresholds at which the parameters of the moment use the target number of experts.
  RoutingInputs solved_inputs() const;
  // A rank without micro-batches learns the losses' names of rank 0, once.
  void share_loss_names();
  // Whether this step, or an earlier one that is to run again, had no room for its pairs: bool [].
  at::Tensor halts(const StepSums& sums);
  // Ends a step whose gradients are there: updates parameters and controller as is decided.
  void apply(const StepNumbers& numbers, double lr, StepStates& states);
  // Back to before the step of this result, which must run again, and those after it.
  void undo(const StepResult& halted);

  RunConfig config_;
  Model model_;
  TrainingData data_;
  World world_;
  ParameterStore store_;
  ExpertCompute experts_;  // none where this rank holds all
  LossFunction losses_;
  std::vector<std::string> loss_names_;
  bool names_are_shared_ = false;
  ThresholdController controller_;
  TrainingState state_;
  at::Tensor counts_LE_;    // f64: with global batch statistics, the last applied step's; else undefined
  int64_t parts_ = 1;       // that this rank cuts each micro-batch into
  PairLimits pair_limits_;  // of whole micro-batches
  at::Tensor halted_;  // bool []: a step had no room for its pairs; until it runs again nothing is applied
  std::deque<StepInFlight> in_flight_;
  double last_arrival_ = 0;  // seconds of a steady clock
};

}  // namespace dtopp

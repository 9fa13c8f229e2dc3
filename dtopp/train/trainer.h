// Runs optimizer steps and validation, without files, signals or output.
//
// The host issues a step to the device and reads its numbers when they have arrived. It never waits for the
// device between the start of a step's forward pass and the end of its update.
//
// Collective:    the constructor and every function that is not const or is marked so
#pragma once

#include "dtopp/base/stop.h"
#include "dtopp/distributed/process_groups.h"
#include "dtopp/models/batch.h"
#include "dtopp/models/model.h"
#include "dtopp/models/validation_sums.h"
#include "dtopp/optim/parameter_store.h"
#include "dtopp/train/step.h"

namespace dtopp::train {

class InitialParameters;

// Begins the names of the scopes around micro-batches. Their index in the step follows.
inline constexpr std::string_view kMicroBatchScope = "micro-batch ";
// Names the scope around a backward pass. It contains the sums of gradients, which no layer's scope does.
inline constexpr std::string_view kBackwardScope = "backward";
// Other scopes of a step.
inline constexpr std::string_view kGradientSumsScope = "gradient sums";
inline constexpr std::string_view kGradientNormScope = "gradient norm";
inline constexpr std::string_view kUpdateScope = "update";

// The thresholds before the first step, one or one per layer, and the mean number of experts of the tokens
// that they were solved on.
struct SolvedStart {
  std::vector<double> thresholds;
  double experts = 0;
  int64_t tokens = 0;
};

class Trainer {
 public:
  // compute: at::kFloat or at::kBFloat16, and the device. The ranks of `groups` train together, each with one
  // Trainer.
  Trainer(const config::RunConfig& config, models::Model model, models::TrainingData data,
          const at::TensorOptions& compute, distributed::ProcessGroups groups = {});

  // Call one of these three before the first step. Step 0, with parameters from the seed or a checkpoint:
  void initialize();
  void initialize_from(const InitialParameters& parameters);
  // Resumes from a checkpoint. CheckpointError if a tensor is missing.
  void restore(const checkpoint::Checkpoint& checkpoint);

  // Sets the thresholds to those at which the first training tokens use routing.experts. Call it before the
  // first step. Requires a controller. Every rank computes all of these tokens.
  SolvedStart solve_initial_thresholds();

  // Issues the next step. Returns false if a stop is requested between micro-batches: nothing has changed,
  // and the step can run again. With several ranks the step is finished instead, and its result reports the
  // stop. Throws c10::OutOfMemoryError if the device has too little memory.
  bool step(const StopToken& stop);
  // Waits for the earliest unread step and returns its result; nullopt if at most `in_flight` steps are
  // unread. Also nullopt if that step exceeded its capacity: it and all later steps have changed nothing, and
  // state() is the state before it.
  std::optional<StepResult> next_result(size_t in_flight);
  // Sets the capacity of each layer to the pairs of the last result times `margin`. With 0 each micro-batch
  // computes its own, for which the host waits on a device. The default is kCapacityMargin on a device with
  // EP size 1, else 0.
  void predict_capacity(double margin) { capacity_predictor_ = moe::CapacityPredictor(margin); }
  // The mean over the first `tokens` held-out tokens of each source. Requires data().validation_samples > 0.
  // Batch b runs on rank b modulo the number of ranks. nullopt, on all ranks, if a stop is requested on any
  // rank. Collective.
  std::optional<models::ValidationResult> validate(int64_t tokens, const StopToken& stop);
  // Exchanges parameters() with their EMA until the next call. Requires a model with an EMA. Collective.
  void swap_ema() { store_.swap_ema(); }

  // Records the validation at the current step, so that a resumed run does not repeat it.
  void mark_validated() { state_.last_validation_step = state_.step; }

  // The state after the steps whose results were read; step, tokens and position include issued steps. A
  // checkpoint therefore takes it after the last result.
  const checkpoint::TrainingState& state() const { return state_; }
  // The router at the next step, with this rank's experts: for whole parameters.
  moe::Routing routing() const { return moe::routing_by(router_); }
  // The same with the experts of the EP group, for parameters() in the compute precision.
  moe::Routing parallel_routing() const {
    moe::Routing parallel = routing();
    parallel.experts = dispatcher_;
    parallel.ranks = groups_.world.get();
    return parallel;
  }
  const optim::ParameterStore& parameters() const { return store_; }
  const models::Model& model() const { return model_; }
  const models::TrainingData& data() const { return data_; }
  distributed::Collectives& ranks() const { return *groups_.world; }
  int64_t step_tokens() const { return config_.training.global_batch_size * model_.tokens_per_sample; }

 private:
  int64_t micro_batches() const {
    return config_.training.global_batch_size / config_.training.micro_batch_size;
  }
  void record_training_data();
  StepShape step_shape() const;
  // theta per routed layer; [0] unless dynamic.
  Tensor scales() const;
  // Runs the model forward and backward over this rank's micro-batches, until `stop` becomes true.
  StepSums accumulate_gradients(const moe::Routing& inputs, const StopToken& stop);
  void accumulate_micro_batch(int64_t micro_batch, const moe::Routing& inputs, StepSums& sums);
  // Computes this rank's experts for other ranks of its EP group that have a micro-batch or validate, while
  // this rank has no batch.
  void forward_empty() const;
  std::optional<models::ValidationResult> validate_with(const moe::Routing& inputs,
                                                        const std::vector<models::HeldOutSource>& sources,
                                                        const StopToken& stop) const;
  // A router with thresholds at which the current parameters use the target number of experts.
  moe::Routing solved_routing() const;
  // Sends rank 0's loss names to ranks without micro-batches, once.
  void share_loss_names();
  // Whether this step, or an earlier one that must run again, exceeded its capacity: bool [].
  Tensor overflows(const StepSums& sums);
  // Updates parameters and controller as decided, after the gradients are complete.
  void apply(StepNumbers& numbers, const optim::LearningRates& rates);

  config::RunConfig config_;
  models::Model model_;
  models::TrainingData data_;
  distributed::ProcessGroups groups_;
  optim::ParameterStore store_;
  std::shared_ptr<moe::AllToAllTokenDispatcher> dispatcher_;  // null if this rank holds all experts
  models::LossFunction losses_;
  std::vector<std::string> loss_names_;
  bool names_are_shared_ = false;
  std::shared_ptr<moe::Router> router_;  // null: a dense model
  checkpoint::TrainingState state_;
  moe::CapacityPredictor capacity_predictor_;
  Tensor overflowed_;  // bool []: a step exceeded its capacity; nothing is applied until it runs again
  std::deque<StepInFlight> in_flight_;
  double last_arrival_ = 0;  // seconds of a steady clock
};

}  // namespace dtopp::train

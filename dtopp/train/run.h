// Runs a training in its directory, with resuming, evaluations and stopping:
//
// <output>/config.yaml  metrics.jsonl  events.out.tfevents.*  checkpoints/step-XXXXXXXX/
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtopp/base/progress.h"
#include "dtopp/base/stop.h"
#include "dtopp/distributed/cluster.h"
#include "dtopp/moe/budget_watch.h"
#include "dtopp/plan/plan.h"
#include "dtopp/runs/metrics.h"
#include "dtopp/runs/run_directory.h"
#include "dtopp/train/profile.h"
#include "dtopp/train/run_saving.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {

// Work that a run repeats between its steps, such as tasks or sample grids (eval/in_training).

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

struct RunSummary {
  std::filesystem::path directory;
  std::filesystem::path checkpoint;  // the final checkpoint
  int64_t steps = 0;                 // of the whole run, as `tokens`
  int64_t tokens = 0;
  bool already_complete = false;  // before train()
  std::string profile{};          // the table of profile(), on rank 0
};

// Each rank has one Run. Only rank 0 writes to the directory and has a `log` that prints.
class Run {
 public:
  // All references must outlive this object. The cluster is connected, and `directory` exists. train()
  // initializes or restores the trainer. memory: bytes of this rank, free at the start.
  Run(const config::RunConfig& config, Trainer& trainer, runs::RunDirectory& directory,
      distributed::Cluster& cluster, const plan::Plan& plan, uint64_t memory, const ConsoleLog& log,
      const StopToken& stop);

  // Adds an evaluation; null: none. Call it before train(), with the same evaluations on all ranks.
  void add(std::unique_ptr<Periodic> evaluation);

  // Ends the run after that many steps and writes profile.txt and trace.json (profile.h), on rank 0.
  // Call it before train(), with the same number on all ranks. UsageError if the device is not a CPU.
  void profile(int64_t steps);

  // Trains to config.training.steps, resuming from the newest valid checkpoint in config.output. After a
  // request to stop, which may be the deadline of training.max_hours, saves the state and throws Stopped.
  // Call it once.
  //
  // Returns:       the summary, on every rank
  // Throws:        NumericalError after more than training.max_skips non-finite steps in a row; ResourceError
  //                with a smaller micro-batch size if device memory is too small; DataError if a file cannot
  //                be read or written; UsageError if fewer steps are left than profile() asks for; errors of
  //                begin_or_resume
  // Collective:    every rank
  RunSummary train();

 private:
  // Opens the files of rank 0.
  void open_outputs(bool resumed);
  void train_step();
  bool next_is_traced() const { return trainer_.state().step + 1 == config_.logging.trace_step; }
  void save_trace(StepTrace& trace);
  // The step after which train() returns. UsageError if fewer steps are left than profile() asks for.
  int64_t last_step() const;
  // Writes the profile's files and returns its table.
  std::string save_profile() const;
  // Processes results until at most `in_flight` issued steps are left.
  void take_results(size_t in_flight);
  void record(const StepResult& result);
  // Prints the step's line: on a terminal in place of the last one, elsewhere every logging.console_every
  // steps.
  void show(const StepResult& result, const StepRates& speed, bool is_last);
  // Names the micro-batch size to lower training.micro_batch_size to.
  [[noreturn]] void out_of_memory() const;
  [[noreturn]] void give_up(const StepResult& result);
  bool validation_is_due() const;
  bool is_due(const Periodic& evaluation) const { return evaluation.is_due(trainer_.state(), finished()); }
  bool anything_is_due() const;
  // Validates and runs the evaluations that are due. `resumed`: leaves out those that an earlier process of
  // this run has done.
  void evaluate(bool resumed);
  bool saving_is_due() const {
    return config_.checkpoint.every > 0 && trainer_.state().step % config_.checkpoint.every == 0;
  }
  // The host memory that the run leaves for a snapshot.
  uint64_t snapshot_room() const;
  // Saves in the background, except for the last checkpoint.
  void save();
  void save_now();
  [[noreturn]] void stop_here();
  bool finished() const { return trainer_.state().step >= config_.training.steps; }
  // Whether train() has no step left: finished(), or all of profile()'s steps are done.
  bool ended() const { return trainer_.state().step >= last_step_; }
  bool complete() const { return finished() && !validation_is_due(); }

  const config::RunConfig& config_;
  Trainer& trainer_;
  runs::RunDirectory& directory_;
  distributed::Cluster& cluster_;
  const distributed::ProcessGroups& groups_;
  const plan::Plan& plan_;
  uint64_t memory_;
  ConsoleLog log_;
  StopToken stop_;
  std::vector<std::unique_ptr<Periodic>> evaluations_;
  std::optional<runs::MetricsWriter> metrics_;  // on rank 0 only, like meter_
  std::optional<StepMeter> meter_;
  int64_t last_step_ = 0;
  int64_t profile_steps_ = 0;           // 0: no profile
  std::optional<StepProfile> profile_;  // on rank 0 only
  MachineRates rates_;                  // measured before the profile's first step
  RunSaver saver_;
  moe::BudgetWatch budget_;
  bool shows_first_ = true;      // no step of this process has been shown
  bool stop_requested_ = false;  // on any rank
  bool unsaved_ = false;         // whether the trainer's state is newer than the last save's
};

// Writes steps and validations to metrics.jsonl, under the names of docs/reference/metrics.md.

// An empty record with the current time.
runs::MetricRecord record_now(int64_t step, int64_t tokens);

// Adds train/… and, for a model with routers, moe/… in total and per layer.
void add_step(const StepResult& result, const config::ModelConfig& model, runs::MetricRecord& record);

// Adds data/… if sources have weights: their use up to `position`.
void add_sources(const models::TrainingData& data, int64_t position, runs::MetricRecord& record);

// Adds train/active_flops, as `plan` counts them for the pairs of all steps so far, and, for a model with
// routers, train/active_experts_mean.
void add_work(const StepResult& result, const plan::Plan& plan, runs::MetricRecord& record);

// Adds throughput/…, memory/… and, with several ranks, comm/…. data_share: the share of the step spent
// waiting for data.
void add_rates(const StepRates& rates, double data_share, runs::MetricRecord& record);

// Adds checkpoint/….
void add_saving(const SaveTimes& times, runs::MetricRecord& record);

// Adds val/….
void add_validation(const models::ValidationResult& result, runs::MetricRecord& record);

}  // namespace dtopp::train

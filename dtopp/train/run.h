// Runs a training in its directory, with resuming, evaluations and stopping:
//
// <output>/config.yaml  metrics.jsonl  events.out.tfevents.*  checkpoints/step-XXXXXXXX/
#pragma once

#include <future>

#include "dtopp/base/progress.h"
#include "dtopp/base/stop.h"
#include "dtopp/distributed/cluster.h"
#include "dtopp/moe/activation_statistics.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/plan/plan.h"
#include "dtopp/runs/metrics.h"
#include "dtopp/runs/run_directory.h"
#include "dtopp/train/profile.h"
#include "dtopp/train/trainer.h"

namespace dtopp::train {

// The seconds that one checkpoint took.
struct SaveTimes {
  double stall = 0;  // training waited
  double write = 0;  // until the checkpoint was complete
};

// Saves a run's checkpoints from all its ranks, while training waits or while it continues. Each rank has
// one.
//
// A checkpoint holds everything that the run in config.output needs to resume; each rank
// writes its part. Before each save, read the results of all steps (Trainer::next_result), because they are
// part of the state. Older checkpoints stay valid if saving fails.
//
// In the background, a thread writes a snapshot of the state; the files are those of save() at the same step.
// At most one save is pending.
//
//   start()   ranks copy their shards       training   poll()   poll()   ...   start() waits for the thread
//     \-> thread: sync metrics, write files, rename, remove old checkpoints, run.json
//
// Throws:        DataError on a rank that cannot write; RankLost on the others
// Collective:    allocate_snapshot, save, start and wait, on every rank, in the same order
class RunSaver {
 public:
  // All references must outlive this object. `metrics` is empty on ranks other than 0.
  RunSaver(const Trainer& trainer, const config::RunConfig& config, const distributed::ProcessGroups& groups,
           const runs::RunDirectory& directory, const std::optional<runs::MetricsWriter>& metrics,
           ConsoleLog log);
  // Abandons a pending save, and returns when its thread has ended.
  ~RunSaver();
  RunSaver(const RunSaver&) = delete;
  RunSaver& operator=(const RunSaver&) = delete;

  // Lets start() save in the background, if `bytes` of a snapshot fit into `room` on every rank. Otherwise it
  // logs a line, or throws ResourceError if checkpoint.asynchronous is true.
  void allocate_snapshot(uint64_t bytes, uint64_t room);

  // Saves before it returns; a pending save ends first.
  void save();
  // Saves in the background, or like save() without a snapshot. It first waits for a pending save, which a
  // request to stop abandons.
  void start(const StopToken& stop);
  // Handles the end of a pending save, if it has ended. Throws this rank's own error only: a rank with an
  // error throws it and ends the others.
  void poll();
  // Waits until no save is pending.
  void wait(const StopToken& stop = {});
  // Lets a pending save end at its next piece, without its checkpoint. One rank is enough.
  void abandon() { abandoned_ = true; }

  // The run's newest complete checkpoint that this object knows of, at first the one it resumed from.
  void resumed_from(const fs::path& checkpoint) { newest_ = checkpoint; }
  const fs::path& newest_checkpoint() const { return newest_; }
  // The times of a save that ended since the last call.
  std::optional<SaveTimes> take_times() { return std::exchange(times_, std::nullopt); }

 private:
  struct Written {
    fs::path path;
    double end = 0;  // seconds of a steady clock
  };

  Written write(const checkpoint::CheckpointContents& contents, const std::vector<Tensor>& shards,
                distributed::Collectives& ranks, const std::atomic<bool>* abandoned) const;
  void finish();

  const Trainer& trainer_;
  const config::RunConfig& config_;
  const distributed::ProcessGroups& groups_;
  const runs::RunDirectory& directory_;
  const std::optional<runs::MetricsWriter>& metrics_;
  ConsoleLog log_;
  fs::path newest_;
  std::optional<ops::HostSnapshot> snapshot_;
  std::optional<SaveTimes> times_;
  bool has_warned_ = false;
  double begin_ = 0, stall_ = 0;  // of the pending save
  std::exception_ptr lost_;       // another rank failed in the pending save
  std::atomic<bool> abandoned_ = false;
  std::future<Written> pending_;
};

// Names and values: {"hellaswag/accuracy", 0.31} becomes eval/hellaswag/accuracy in metrics.jsonl.
using Measurements = std::vector<std::pair<std::string, double>>;

// Work that a run repeats between its steps, such as tasks or sample grids (eval/in_training). It must not
// change training results: run() draws no random numbers of the training and leaves
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
  fs::path directory;
  fs::path checkpoint;  // the final checkpoint
  int64_t steps = 0;    // of the whole run, as `tokens`
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
  void add(std::unique_ptr<Periodic> evaluation) {
    if (evaluation) evaluations_.push_back(std::move(evaluation));
  }

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
  void open_outputs(bool resumed);
  void train_step();
  bool next_is_traced() const { return trainer_.state().step + 1 == config_.logging.trace_step; }
  int64_t last_step() const;
  std::string save_profile() const;  // returns its table
  // Processes results until at most `in_flight` issued steps are left.
  void take_results(size_t in_flight);
  void record(const StepResult& result);
  // Prints the step's line: on a terminal in place of the last one, elsewhere every logging.console_every
  // steps.
  void show(const StepResult& result, const StepRates& speed, bool is_last);
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

// The console lines of a run:
//
// 1.51M parameters, 0.91M active per token; 300 steps of 4 x 256 tokens: 307k tokens
//
// `steps` are those that this process trains; a profile trains only a few of the run's.
std::string run_line(const config::RunConfig& config, const plan::Plan& plan, int64_t steps);

// step 120/300 | loss 5.123 | 5.12k tok/s | 1m27s, 2m10s left | experts 4.02/4 | p 0.412 | imbalance 1.8 |
// grad 0.84 | lr 2.9e-3 | 1.2 GB
//
// A narrow terminal cuts the end of the line. Fields that do not apply are omitted: experts and imbalance for
// a dense model, the target unless the method keeps one, p for top_k, the MFU unless the device's data sheet
// is known. With a threshold per layer, p is the range "0.39-0.44". A skipped step is marked "skipped". The
// times are those in steps: so far in the whole run, and left unless it is 0.0s.
std::string console_line(const config::RunConfig& config, int64_t step, const StepResult& result,
                         const StepRates& rates);

// validation at step 300: loss 5.123456, active experts 4.020000, hellaswag/accuracy 0.312500
//
// `loss` is null without validation data. A dense model has no active experts.
std::string validation_line(int64_t step, const models::ValidationResult* loss, const Measurements& measured);

// `planned` is the largest micro-batch that the plan fits into memory. If it is not smaller than the size
// that ran out of memory, the line names half of that size.
std::string out_of_memory_line(const config::RunConfig& config, std::optional<int64_t> planned);

}  // namespace dtopp::train

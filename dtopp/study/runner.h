// Executes the runs of a study, and the commands after them, each in its own process.
#pragma once

#include <deque>

#include "dtopp/base/progress.h"
#include "dtopp/launch/child_process.h"
#include "dtopp/study/definition.h"
#include "dtopp/study/run_folder.h"

namespace dtopp::study {
// Shows the progress of a study on standard error while it runs.
class StudyProgress {
 public:
  // `costs` holds one cost per run; progress is their completed share. The vectors must outlive this object.
  StudyProgress(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                const std::vector<double>& costs);

  // Redraws in place on a terminal. Elsewhere it prints one line per minute, and one after make_due().
  void draw(const std::vector<size_t>& running);
  void make_due() { next_draw_ = began_; }
  // See StatusLine.
  void clear() { line_.clear(); }
  void finish() { line_.end(); }

  // Returns "study  3 of 10 runs done, 1 failed, 2 running  43 %  5m12s left". A failed run counts as
  // complete.
  std::string line(const std::vector<size_t>& running, double seconds);

 private:
  using Clock = std::chrono::steady_clock;

  bool counts(size_t index) const;
  double cost_done() const;

  const std::vector<StudyRun>& runs_;
  const std::vector<RunRecord>& records_;
  const std::vector<double>& costs_;
  StatusLine line_{stderr};
  Clock::time_point began_, next_draw_;
  double total_ = 0;
  int64_t total_runs_ = 0;
  double before_ = 0;  // cost that was complete at construction
};

struct RunnerOptions {
  int64_t slots = 1;                       // number of concurrent processes
  fs::path program{};                      // the executable; empty: this program
  int64_t threads = 0;                     // for each run whose configuration sets none; 0: all cores
  std::vector<double> costs{};             // cost per run in any unit; progress is their completed share
  std::vector<AfterCommand> after{};       // run in this order after each finished run
  std::chrono::milliseconds grace{60000};  // for processes to save and end if the study ends with an error
  double hours = 0;                        // start no run that would end later than this; 0: no limit
};

// Starts `dtopp train` for every selected run whose record is not done, in order, and then the commands after
// it that have not succeeded. A command that fails ends those of its run.
//
// `records` holds one record per run, from read_record. They and the records in the folders are updated. A
// failure does not end the study; the next StudyRunner retries it. Standard output and error are appended to
// console.log, or after/NAME.log.
//
// The first SIGTERM, SIGINT or SIGHUP is forwarded to all processes, which save a checkpoint and stop; no
// further one is started. A second SIGTERM or SIGINT at least a tenth of a second later kills them. They are
// also killed if the calling thread ends.
class StudyRunner {
 public:
  // The arguments must outlive this object.
  StudyRunner(const std::vector<StudyRun>& runs, std::vector<RunRecord>& records,
              const RunnerOptions& options);
  // After an error, sends SIGTERM to all processes. Kills those that have not ended after `grace` or at the
  // next SIGTERM or SIGINT.
  ~StudyRunner();
  StudyRunner(const StudyRunner&) = delete;
  StudyRunner& operator=(const StudyRunner&) = delete;

  // Waits until a process has ended or a folder was moved.
  //
  // Returns: messages to print, possibly none; nullopt if no process is left
  // Throws:  ResourceError if a process cannot be started
  std::optional<std::vector<std::string>> next();
  bool stopped() const { return stopping_; }  // a signal stopped the study
  // Returns true if runs are left that would not end within `hours`, at the rate of the runs that ended so
  // far.
  bool out_of_time() const { return !stopping_ && !waiting_.empty(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    size_t index = 0;
    pid_t process = 0;
    Clock::time_point started{};
    fs::path console{};
    uint64_t console_begin = 0;             // size of the console file before this start
    const AfterCommand* command = nullptr;  // nullptr: training
    double cost = 0;                        // cost that was left at the start
  };

  bool fits(size_t index) const;
  double cost_left(size_t index) const;
  void start_next();
  void start_command(size_t index);
  void start(Running run, std::vector<std::string> words);
  void stop(int signal);
  bool reap();
  void note_end(const Running& run, const launch::ChildEnd& end);

  const std::vector<StudyRun>& runs_;
  std::vector<RunRecord>& records_;
  const RunnerOptions& options_;
  StudyProgress progress_;
  std::vector<std::string> messages_;
  std::deque<size_t> waiting_;
  std::vector<Running> running_;
  bool stopping_ = false;
  Clock::time_point stopped_at_{};
  Clock::time_point began_ = Clock::now();
  double seconds_of_ended_ = 0, cost_of_ended_ = 0;  // of the training processes that have succeeded
  launch::SignalPipe signals_;
};

// The cost of all training and validation of a run.
struct RunCost {
  double flops = 0;
  double matrix_rate = 0;  // this machine's FLOP/s in matrix products, in the run's precision
};

// The share of the matrix rate that training reaches: the mean, over done runs, of the median
// throughput/tflops beside the run's RunCost::matrix_rate. Without done runs it is 0.4; small models on CPUs
// reached 0.28 to 0.67.
struct ReachedShare {
  double share = 0.4;
  int64_t runs = 0;  // number of runs it was measured in
};
ReachedShare reached_share(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                           const std::vector<RunCost>& costs);

// Returns the FLOPs of training and validation. A validation token costs a third of a training token, because
// it has no backward pass. Validations run before the first step, every validation.every steps and after the
// last step.
double flops_of(const config::RunConfig& config, uint64_t flops_per_token, uint64_t tokens_per_step);

// Returns a table with one line per run (name, status, steps, remaining FLOPs and hours) and the totals.
std::string forecast_table(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                           const std::vector<RunCost>& costs, const ReachedShare& reached);

}  // namespace dtopp::study

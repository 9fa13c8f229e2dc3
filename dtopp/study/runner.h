// Executes the runs of a study, and the commands after them, each in its own process.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/launch/child_process.h"
#include "dtopp/launch/signal_pipe.h"
#include "dtopp/study/expansion.h"
#include "dtopp/study/run_folder.h"
#include "dtopp/study/study_progress.h"

namespace dtopp::study {

struct RunnerOptions {
  int64_t slots = 1;                       // number of concurrent processes
  std::filesystem::path program{};         // the executable; empty: this program
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
    std::filesystem::path console{};
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

}  // namespace dtopp::study

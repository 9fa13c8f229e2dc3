#include "dtopp/study/runner.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <deque>
#include <system_error>

#include <fcntl.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/launch/child_process.h"
#include "dtopp/launch/signal_pipe.h"
#include "dtopp/study/study_progress.h"

namespace dtopp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWaitMilliseconds = 1000;  // between two progress updates
constexpr int kStopped = static_cast<int>(ExitStatus::kStopped);

struct Running {
  size_t index = 0;
  pid_t process = 0;
  Clock::time_point started{};
  uint64_t console_begin = 0;  // size of console.log before this start
};

// Describes how a run ended, with the last error that it printed.
std::string cause_of(const StudyRun& run, const ChildEnd& end, uint64_t console_begin) {
  if (end.signal != 0) return "killed by " + signal_name(end.signal);
  std::string cause = "ended with status " + std::to_string(end.status);
  constexpr std::string_view kMark = "dtopp: error: ";
  const std::string text = read_file(console_of_run(run)).substr(console_begin);
  const size_t mark = text.rfind(kMark);
  if (mark == std::string::npos) return cause;
  const size_t begin = mark + kMark.size();
  return cause.append(": ").append(text, begin, text.find('\n', begin) - begin);
}

class Runner {
 public:
  Runner(const std::vector<StudyRun>& runs, std::vector<RunRecord>& records, const RunnerOptions& options)
      : runs_(runs), records_(records), options_(options), progress_(runs, records, options.costs) {
    for (size_t i = 0; i < runs.size(); ++i) {
      if (records[i].status != RunStatus::kDone) waiting_.push_back(i);
    }
  }
  ~Runner() {
    for (const Running& run : running_) ::kill(run.process, SIGKILL);
    for (const Running& run : running_) kill_child(run.process);
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  bool run() {
    while (true) {
      while (!stopping_ && !waiting_.empty() && std::ssize(running_) < options_.slots) start_next();
      progress_.draw(indices());
      if (running_.empty()) break;
      for (const int signal : signals_.wait(kWaitMilliseconds)) {
        if (signal != SIGCHLD) stop(signal);
      }
      reap();
    }
    progress_.finish();
    return stopping_;
  }

 private:
  void start_next() {
    const size_t index = waiting_.front();
    waiting_.pop_front();
    const StudyRun& run = runs_[index];
    prepare_folder(run, [this](const std::string& text) { log(text); });
    records_[index] = read_record(run);
    if (records_[index].status == RunStatus::kDone) return options_.ended();  // prepare_folder restored it
    records_[index].status = RunStatus::kPending;
    write_record(run, records_[index]);
    const std::filesystem::path console = console_of_run(run);
    const Descriptor output(console, O_WRONLY | O_CREAT | O_APPEND, "open");
    ChildProgram child{.program = options_.program.empty() ? own_program() : options_.program,
                       .arguments = {"dtopp", "train", config_of_run(run).string()},
                       .environment = own_environment(),
                       .output = output.get()};
    if (options_.threads > 0 && run.config.training.threads == 0)
      child.arguments.push_back("training.threads=" + std::to_string(options_.threads));
    const pid_t process = start_child(child);
    const int error = errno;
    if (process < 0)
      throw ResourceError("cannot start run " + run.name + ": " + std::generic_category().message(error) +
                          "; lower --slots");
    running_.push_back({index, process, Clock::now(), static_cast<uint64_t>(output.status().st_size)});
  }

  void stop(int signal) {
    if (!stopping_) {
      stopping_ = true;
      stopped_at_ = Clock::now();
      for (const Running& run : running_) ::kill(run.process, signal);
    } else if (Clock::now() - stopped_at_ >= kOneRequest) {
      for (const Running& run : running_) ::kill(run.process, SIGKILL);
    }
  }

  void reap() {
    for (size_t i = 0; i < running_.size();) {
      const auto end = reap_child(running_[i].process);
      if (!end) {
        ++i;
        continue;
      }
      const Running run = running_[i];
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      note_end(run, *end);
    }
  }

  void note_end(const Running& run, const ChildEnd& end) {
    RunRecord& record = records_[run.index];
    record.seconds += std::chrono::duration<double>(Clock::now() - run.started).count();
    // Status kStopped is no failure: a signal may have reached that run alone. A signal may also kill a run
    // before it has installed its handlers, so a killed run has not failed while the study stops.
    const bool failed = end.signal != 0 ? !stopping_ : end.status != 0 && end.status != kStopped;
    if (failed) {
      record.status = RunStatus::kFailed;
      record.cause = cause_of(runs_[run.index], end, run.console_begin);
    } else if (end.signal == 0 && end.status == 0) {
      record.status = RunStatus::kDone;
    }
    write_record(runs_[run.index], record);
    if (failed) log(runs_[run.index].name + " failed: " + record.cause);
    progress_.make_due();
    options_.ended();
  }

  void log(const std::string& text) {
    progress_.clear();
    options_.log(text);
  }

  std::vector<size_t> indices() const {
    std::vector<size_t> indices;
    for (const Running& run : running_) indices.push_back(run.index);
    return indices;
  }

  const std::vector<StudyRun>& runs_;
  std::vector<RunRecord>& records_;
  const RunnerOptions& options_;
  StudyProgress progress_;
  std::deque<size_t> waiting_;
  std::vector<Running> running_;
  bool stopping_ = false;
  Clock::time_point stopped_at_{};
  SignalPipe signals_;
};

}  // namespace

bool run_all(const std::vector<StudyRun>& runs, std::vector<RunRecord>& records,
             const RunnerOptions& options) {
  for (RunRecord& record : records) {
    if (record.status == RunStatus::kFailed) record = {.seconds = record.seconds};
  }
  return Runner(runs, records, options).run();
}

}  // namespace dtopp

#include "dtopp/study/runner.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sstream>
#include <system_error>
#include <utility>

#include <fcntl.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"

namespace dtopp::study {
namespace {

constexpr int kWaitMilliseconds = 1000;  // between two progress updates
constexpr int kStopped = static_cast<int>(ExitStatus::kStopped);

// Describes how a process ended, with the last error that it printed. Somebody may have truncated or removed
// its console file.
std::string cause_of(const std::filesystem::path& console, const launch::ChildEnd& end,
                     uint64_t console_begin) {
  if (end.signal != 0) return "killed by " + launch::signal_name(end.signal);
  std::string cause = "ended with status " + std::to_string(end.status);
  constexpr std::string_view kMark = "dtopp: error: ";
  std::string text;
  try {
    text = read_file(console);
  } catch (const DataError&) {
    return cause;
  }
  if (console_begin <= text.size()) text.erase(0, console_begin);
  const size_t mark = text.rfind(kMark);
  if (mark == std::string::npos) return cause;
  const size_t begin = mark + kMark.size();
  return cause.append(": ").append(text, begin, text.find('\n', begin) - begin);
}

void replace(std::string& word, std::string_view name, const std::string& value) {
  for (size_t at = word.find(name); at != std::string::npos; at = word.find(name, at + value.size()))
    word.replace(at, name.size(), value);
}

std::vector<std::string> words_of(const AfterCommand& command, const StudyRun& run) {
  std::istringstream line(command.line);
  std::vector<std::string> words;
  for (std::string word; line >> word; words.push_back(word)) {
    replace(word, "{run}", run.directory.string());
    replace(word, "{result}", result_of(run, command).string());
  }
  return words;
}

}  // namespace

StudyRunner::StudyRunner(const std::vector<StudyRun>& runs, std::vector<RunRecord>& records,
                         const RunnerOptions& options)
    : runs_(runs), records_(records), options_(options), progress_(runs, records, options.costs) {
  for (size_t i = 0; i < runs.size(); ++i) {
    RunRecord& record = records[i];
    if (record.status == RunStatus::kFailed) record.status = RunStatus::kPending;
    record.cause.clear();
    if (runs[i].selected && !is_complete(record, options.after)) waiting_.push_back(i);
  }
}

StudyRunner::~StudyRunner() {
  if (!stopping_) stop(SIGTERM);  // a second SIGTERM would interrupt a save
  const auto last = Clock::now() + options_.grace;
  for (bool hurries = false; !hurries;) {
    std::erase_if(running_, [](const Running& run) { return launch::reap_child(run.process).has_value(); });
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(last - Clock::now()).count();
    if (running_.empty() || left <= 0) break;
    for (const int signal : signals_.wait(static_cast<int>(left)))
      hurries = hurries || launch::may_insist(signal);
  }
  for (const Running& run : running_) ::kill(run.process, SIGKILL);
  for (const Running& run : running_) launch::kill_child(run.process);
}

std::optional<std::vector<std::string>> StudyRunner::next() {
  bool has_ended = false;
  while (!has_ended && messages_.empty()) {
    while (!stopping_ && !waiting_.empty() && std::ssize(running_) < options_.slots && fits(waiting_.front()))
      start_next();
    std::vector<size_t> indices;
    for (const Running& run : running_) indices.push_back(run.index);
    progress_.draw(indices);
    if (running_.empty() && messages_.empty()) {
      progress_.finish();
      return std::nullopt;
    }
    for (const int signal : signals_.wait(messages_.empty() ? kWaitMilliseconds : 0)) {
      if (launch::is_stop(signal)) stop(signal);
    }
    has_ended = reap();
  }
  if (!messages_.empty()) progress_.clear();
  return std::exchange(messages_, {});
}

double StudyRunner::cost_left(size_t index) const {
  if (records_[index].status == RunStatus::kDone) return 0;
  const double done =
      static_cast<double>(last_step(runs_[index])) / static_cast<double>(runs_[index].config.training.steps);
  return options_.costs[index] * std::clamp(1 - done, 0.0, 1.0);
}

bool StudyRunner::fits(size_t index) const {
  if (options_.hours == 0) return true;
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  const double rate = cost_of_ended_ > 0 ? seconds_of_ended_ / cost_of_ended_ : 0;
  return seconds + rate * cost_left(index) < options_.hours * 3600;
}

void StudyRunner::start_next() {
  const size_t index = waiting_.front();
  waiting_.pop_front();
  const StudyRun& run = runs_[index];
  RunRecord& record = records_[index];
  if (record.status != RunStatus::kDone) {
    std::ranges::move(prepare_folder(run), std::back_inserter(messages_));
    record = read_record(run);  // prepare_folder may have restored it
  }
  if (record.status == RunStatus::kDone) return start_command(index);
  record.status = RunStatus::kPending;
  record.cause.clear();
  write_record(run, record);
  std::vector<std::string> words = {"dtopp", "train", config_of_run(run).string()};
  if (options_.threads > 0 && run.config.training.threads == 0)
    words.push_back("training.threads=" + std::to_string(options_.threads));
  start({.index = index, .console = console_of_run(run), .cost = cost_left(index)}, std::move(words));
}

void StudyRunner::start_command(size_t index) {
  RunRecord& record = records_[index];
  record.after.resize(commands_done(record, options_.after));
  if (record.after.size() == options_.after.size()) return;
  const AfterCommand& command = options_.after[record.after.size()];
  const std::filesystem::path console = console_of(runs_[index], command);
  make_directories(console.parent_path());
  start({.index = index, .console = console, .command = &command}, words_of(command, runs_[index]));
}

void StudyRunner::start(Running run, std::vector<std::string> words) {
  const Descriptor output(run.console, O_WRONLY | O_CREAT | O_APPEND, "open");
  launch::ChildProgram child{
      .program = "/usr/bin/env", .environment = launch::own_environment(), .output = output.get()};
  if (words.front() == "dtopp")
    child.program = options_.program.empty() ? launch::own_program() : options_.program;
  else
    child.arguments.push_back("env");  // finds the program in PATH
  std::ranges::move(words, std::back_inserter(child.arguments));
  run.console_begin = static_cast<uint64_t>(output.status().st_size);
  run.started = Clock::now();
  run.process = launch::start_child(child);
  const int error = errno;
  if (run.process < 0)
    throw ResourceError("cannot start run " + runs_[run.index].name + ": " +
                        std::generic_category().message(error) + "; lower --slots");
  running_.push_back(std::move(run));
}

void StudyRunner::stop(int signal) {
  if (!stopping_) {
    stopping_ = true;
    stopped_at_ = Clock::now();
    for (const Running& run : running_) ::kill(run.process, signal);
  } else if (launch::may_insist(signal) && Clock::now() - stopped_at_ >= launch::kOneRequest) {
    for (const Running& run : running_) ::kill(run.process, SIGKILL);
  }
}

bool StudyRunner::reap() {
  bool has_ended = false;
  for (size_t i = 0; i < running_.size();) {
    const auto end = launch::reap_child(running_[i].process);
    if (!end) {
      ++i;
      continue;
    }
    has_ended = true;
    const Running run = running_[i];
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    note_end(run, *end);
  }
  return has_ended;
}

void StudyRunner::note_end(const Running& run, const launch::ChildEnd& end) {
  RunRecord& record = records_[run.index];
  const double seconds = std::chrono::duration<double>(Clock::now() - run.started).count();
  if (run.command == nullptr) record.seconds += seconds;
  // Status kStopped is no failure: a signal may have reached that run alone. A signal may also kill a run
  // before it has installed its handlers, so a killed run has not failed while the study stops.
  const bool failed = end.signal != 0 ? !stopping_ : end.status != 0 && end.status != kStopped;
  const bool succeeded = end.signal == 0 && end.status == 0;
  if (failed) {
    record.cause = cause_of(run.console, end, run.console_begin);
    if (run.command != nullptr) record.cause = "command " + run.command->name + " " + record.cause;
    messages_.push_back(runs_[run.index].name + " failed: " + record.cause);
  }
  if (failed && run.command == nullptr) record.status = RunStatus::kFailed;
  if (succeeded && run.command == nullptr) {
    record.status = RunStatus::kDone;
    seconds_of_ended_ += seconds;
    cost_of_ended_ += run.cost;
  }
  if (succeeded && run.command != nullptr) record.after.push_back(to_text(*run.command));
  write_record(runs_[run.index], record);
  if (succeeded && !is_complete(record, options_.after)) waiting_.push_front(run.index);
  progress_.make_due();
}

}  // namespace dtopp::study

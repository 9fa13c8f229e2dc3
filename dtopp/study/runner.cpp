#include "dtopp/study/runner.h"

#include <cmath>
#include <sstream>
#include <system_error>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/runs/run_history.h"
#include "dtopp/study/results.h"

namespace dtopp::study {
namespace {

constexpr auto kLineElsewhere = std::chrono::seconds(60);

// The share of the run's steps that its folder holds.
double share_done(const StudyRun& run) {
  return std::min(1.0, static_cast<double>(last_step(run)) / static_cast<double>(run.config.training.steps));
}

constexpr int kWaitMilliseconds = 1000;  // between two progress updates
constexpr int kStopped = static_cast<int>(ExitStatus::kStopped);

// Describes how a process ended, with the last error that it printed. Somebody may have truncated or removed
// its console file.
std::string cause_of(const fs::path& console, const launch::ChildEnd& end, uint64_t console_begin) {
  if (end.signal != 0) return "killed by " + launch::signal_name(end.signal);
  std::string cause = "ended with status " + std::to_string(end.status);
  try {
    constexpr std::string_view kMark = "dtopp: error: ";
    std::string text = read_file(console);
    if (console_begin <= text.size()) text.erase(0, console_begin);
    const size_t mark = text.rfind(kMark);
    if (mark != std::string::npos)
      cause += ": " + text.substr(mark + kMark.size(), text.find('\n', mark) - mark - kMark.size());
  } catch (const DataError&) {
  }
  return cause;
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

constexpr double kHour = 3600;
constexpr double kStart = 2;               // seconds from a run's start to its first step
constexpr double kForwardShare = 1.0 / 3;  // share of a training step's FLOPs

std::string forecast_line(int width, const std::string& name, const std::string& status,
                          const std::string& steps, const std::string& flops, const std::string& hours) {
  return format("%-*s  %-8s%10s%10s%10s\n", width, name.c_str(), status.c_str(), steps.c_str(), flops.c_str(),
                hours.c_str());
}

}  // namespace

StudyProgress::StudyProgress(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                             const std::vector<double>& costs)
    : runs_(runs),
      records_(records),
      costs_(costs),
      began_(Clock::now()),
      next_draw_(line_.on_terminal() ? began_ : began_ + kLineElsewhere) {
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!counts(i)) continue;
    total_ += costs[i];
    ++total_runs_;
  }
  before_ = cost_done();
}

// A run that is not selected counts only if it is done.
bool StudyProgress::counts(size_t index) const {
  return runs_[index].selected || records_[index].status == RunStatus::kDone;
}

double StudyProgress::cost_done() const {
  double cost = 0;
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (!counts(i)) continue;
    cost += costs_[i] * (records_[i].status == RunStatus::kPending ? share_done(runs_[i]) : 1);
  }
  return cost;
}

std::string StudyProgress::line(const std::vector<size_t>& running, double seconds) {
  const auto count = [&](RunStatus status) {
    return std::to_string(std::ranges::count(records_, status, &RunRecord::status));
  };
  std::string text =
      "study  " + count(RunStatus::kDone) + " of " + std::to_string(total_runs_) + " runs done";
  if (const std::string failed = count(RunStatus::kFailed); failed != "0") text += ", " + failed + " failed";
  if (!running.empty()) text += ", " + std::to_string(running.size()) + " running";
  const double done = cost_done();
  text += "  " + std::to_string(static_cast<int>(std::floor(100 * done / total_))) + " %";
  const double rate = (done - before_) / seconds;
  if (done < total_ && rate > 0) text += "  " + format_duration((total_ - done) / rate) + " left";
  return text;
}

void StudyProgress::draw(const std::vector<size_t>& running) {
  const auto now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = line_.on_terminal() ? now : now + kLineElsewhere;
  line_.draw(line(running, std::chrono::duration<double>(now - began_).count()));
}

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
    for (const int signal : signals_.wait(messages_.empty() ? kWaitMilliseconds : 0))
      if (launch::is_stop(signal)) stop(signal);
    has_ended = reap();
  }
  if (!messages_.empty()) progress_.clear();
  return std::exchange(messages_, {});
}

double StudyRunner::cost_left(size_t index) const {
  if (records_[index].status == RunStatus::kDone) return 0;
  return options_.costs[index] * (1 - share_done(runs_[index]));
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
  const fs::path console = console_of(runs_[index], command);
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
    throw ResourceError("cannot start run ", runs_[run.index].name, ": ",
                        std::generic_category().message(error), "; lower --slots");
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

ReachedShare reached_share(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                           const std::vector<RunCost>& costs) {
  ReachedShare reached;
  double sum = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (records[i].status != RunStatus::kDone) continue;
    if (path_kind(metrics_of_run(runs[i])) == PathKind::kNothing) continue;  // known from the ledger alone
    const runs::RunHistory history = runs::read_run_history(metrics_of_run(runs[i]));
    const auto tflops = history.series.find("throughput/tflops");
    if (tflops == history.series.end()) continue;
    sum += 1e12 * median(tflops->second.values) / costs[i].matrix_rate;
    ++reached.runs;
  }
  if (reached.runs > 0) reached.share = sum / static_cast<double>(reached.runs);
  return reached;
}

double flops_of(const config::RunConfig& config, uint64_t flops_per_token, uint64_t tokens_per_step) {
  double tokens = static_cast<double>(config.training.steps) * static_cast<double>(tokens_per_step);
  if (config.validation.every > 0 && !config.data.validation.empty()) {
    const int64_t every = config.validation.every;
    const int64_t validations = 1 + (config.training.steps + every - 1) / every;
    // validation.tokens are those of each source.
    const size_t sources = config.data.validates_by_source() ? config.data.validation.size() : 1;
    tokens += kForwardShare * static_cast<double>(validations * config.validation.tokens) *
              static_cast<double>(sources);
  }
  return tokens * static_cast<double>(flops_per_token);
}

std::string forecast_table(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                           const std::vector<RunCost>& costs, const ReachedShare& reached) {
  size_t width = 5;
  for (const StudyRun& run : runs) width = std::max(width, run.name.size());
  const int columns = static_cast<int>(width);
  std::string text = forecast_line(columns, "run", "status", "steps", "FLOPs", "hours");
  double flops = 0, seconds = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool is_left = records[i].status != RunStatus::kDone && runs[i].selected;
    const double left = is_left ? costs[i].flops * (1 - share_done(runs[i])) : 0;
    const double time = left > 0 ? kStart + left / (costs[i].matrix_rate * reached.share) : 0;
    flops += left;
    seconds += time;
    text += forecast_line(columns, runs[i].name, enum_name(records[i].status),
                          std::to_string(runs[i].config.training.steps), format_count(left),
                          format("%.3g", time / kHour));
  }
  text += forecast_line(columns, "total", "", std::to_string(runs.size()) + " runs", format_count(flops),
                        format("%.3g", seconds / kHour));
  const std::string why = reached.runs > 0 ? "measured in " + std::to_string(reached.runs) + " of its runs"
                                           : std::string("assumed");
  return text + format("hours: at %.0f %% (%s) of this machine's FLOP/s in matrix products, %s\n",
                       100 * reached.share, why.c_str(), format_count(costs.front().matrix_rate).c_str());
}

}  // namespace dtopp::study

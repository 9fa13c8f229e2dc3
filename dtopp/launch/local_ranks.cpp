#include "dtopp/launch/local_ranks.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <functional>
#include <iterator>
#include <system_error>

#include "dtopp/base/errors.h"

namespace dtopp::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDone = static_cast<int>(ExitStatus::kDone);
constexpr int kLostAnother = static_cast<int>(ExitStatus::kResource);
constexpr int kAllStopped = static_cast<int>(ExitStatus::kStopped);

constexpr auto kNever = Clock::time_point::max();

std::vector<std::string> environment_of(int64_t rank, const LocalRanks& wanted) {
  const std::string index = std::to_string(rank);
  const std::string count = std::to_string(wanted.count);
  std::vector<std::string> entries = {
      "RANK=" + index,           "WORLD_SIZE=" + count,
      "LOCAL_RANK=" + index,     "LOCAL_WORLD_SIZE=" + count,
      "MASTER_ADDR=127.0.0.1",   "MASTER_PORT=" + std::to_string(wanted.store_port),
      "DTOPP_LAUNCHER=processes"};
  const auto is_ours = [ours = entries](const std::string& entry) {
    const auto name = entry.substr(0, entry.find('=') + 1);
    return std::ranges::any_of(ours, [&](const std::string& own) { return own.starts_with(name); });
  };
  std::ranges::copy_if(own_environment(), std::back_inserter(entries), std::not_fn(is_ours));
  return entries;
}

// How well a rank's end explains why the run ended; the largest weight decides.
int weight(const RanksEnd& end) {
  if (end.signal != 0) return 4;
  if (end.status == kDone) return 0;
  if (end.status == kAllStopped) return 1;
  return end.status == kLostAnother ? 2 : 3;
}

bool is_failure(const RanksEnd& end) { return weight(end) > weight({.status = kAllStopped}); }

class RankProcesses {
 public:
  explicit RankProcesses(const LocalRanks& wanted) : wanted_(wanted) {}
  ~RankProcesses() {
    send(SIGKILL);
    for (const pid_t process : processes_)
      if (process != 0) kill_child(process);
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void start() {
    ChildProgram child{.program = wanted_.program.empty() ? own_program() : wanted_.program,
                       .arguments = wanted_.arguments};
    processes_.reserve(static_cast<size_t>(wanted_.count));
    for (int64_t rank = 0; rank < wanted_.count; ++rank) {
      child.environment = environment_of(rank, wanted_);
      const pid_t process = start_child(child);
      const int error = errno;
      if (process < 0)
        throw ResourceError("cannot start rank ", rank, ": ", std::generic_category().message(error),
                            "; lower --processes");
      processes_.push_back(process);
    }
  }

  bool any_left() const {
    return std::ranges::any_of(processes_, [](pid_t process) { return process != 0; });
  }

  void send(int signal) const {
    for (const pid_t process : processes_)
      if (process != 0) ::kill(process, signal);
  }

  // The ends of the ranks that died since the last call. `sent` is the stop signal that they received.
  std::vector<RanksEnd> reap(int sent) {
    std::vector<RanksEnd> ends;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      if (processes_[rank] == 0) continue;
      const auto child = reap_child(processes_[rank]);
      if (!child) continue;
      processes_[rank] = 0;
      RanksEnd end{.status = child->status, .rank = static_cast<int64_t>(rank), .signal = child->signal};
      if (end.signal != 0) end.status = end.signal == sent ? 128 + sent : kLostAnother;
      ends.push_back(end);
    }
    return ends;
  }

 private:
  const LocalRanks& wanted_;
  std::vector<pid_t> processes_;  // by rank; 0 after it has been reaped
};

// Timeout for poll. It is rounded up; otherwise poll would return early and the loop would spin.
int milliseconds_until(Clock::time_point time) {
  if (time == kNever) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
}

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{125}, kLongestPause{60'000};
constexpr int64_t kDoublings = 9;  // from the first pause to one beyond the longest

}  // namespace

std::string RanksEnd::message() const {
  if (rank < 0) return "";
  const std::string name = "rank " + std::to_string(rank);
  if (signal == 0) return name + " ended with status " + std::to_string(status);
  return name + " was killed by " + signal_name(signal);
}

RanksEnd run_local_ranks(const LocalRanks& wanted, const SignalPipe& signals) {
  RankProcesses ranks(wanted);
  ranks.start();
  RanksEnd decided;
  int sent = 0;
  std::optional<Clock::time_point> first_request;
  Clock::time_point kill_at = kNever;
  bool killed = false, stopped = false;
  while (ranks.any_left()) {
    const auto arrived = signals.wait(milliseconds_until(kill_at));
    const auto ends = ranks.reap(sent);
    stopped = stopped || std::ranges::any_of(arrived, is_stop);
    if (killed) continue;
    const bool open = weight(decided) <= weight({.status = kLostAnother});
    for (const auto& end : ends)
      if (open && weight(end) > weight(decided)) decided = end;
    const auto now = Clock::now();
    if (decided.status != kDone && kill_at == kNever) kill_at = now + wanted.grace;
    bool kill = now >= kill_at;
    for (const int signal : arrived) {
      if (!is_stop(signal) || !ranks.any_left()) continue;
      if (sent == 0) {
        sent = signal;
        ranks.send(signal);
      }
      if (!may_insist(signal)) continue;
      if (!first_request) {
        first_request = now;
      } else if (now - *first_request >= kOneRequest) {
        kill = true;
        if (!is_failure(decided)) decided = {.status = 128 + signal};
      }
    }
    if (!kill) continue;
    ranks.send(SIGKILL);
    killed = true;
    kill_at = kNever;
  }
  if (!is_failure(decided)) decided.rank = -1;
  decided.stopped = stopped;
  return decided;
}

Restart Restarts::after(const RanksEnd& end, int64_t step) {
  attempts_at_step_ = step == step_ ? attempts_at_step_ + 1 : 0;
  step_ = step;
  if (allowed_ == 0 || end.stopped || end.status != static_cast<int>(ExitStatus::kResource)) return {};
  if (attempts_at_step_ > 1)
    return {.message = "not restarted: two attempts in a row saved no newer checkpoint"};
  if (used_ == allowed_)
    return {.message = "not restarted: all " + std::to_string(allowed_) + " restarts are used"};
  ++used_;
  return {.again = true,
          .pause = std::min(kLongestPause, kFirstPause * (1 << std::min(used_ - 1, kDoublings))),
          .message = concat("restart ", used_, " of ", allowed_, " from step ", step)};
}

}  // namespace dtopp::launch

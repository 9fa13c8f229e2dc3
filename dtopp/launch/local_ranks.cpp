#include "dtopp/launch/local_ranks.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <system_error>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"
#include "dtopp/launch/signal_pipe.h"

namespace dtopp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDone = static_cast<int>(ExitStatus::kDone);
constexpr int kLostAnother = static_cast<int>(ExitStatus::kResource);
constexpr int kAllStopped = static_cast<int>(ExitStatus::kStopped);

constexpr auto kNever = Clock::time_point::max();

// By its own name, which tools like ps show then; where the file was replaced meanwhile, as the kernel knows
// it.
std::filesystem::path own_program() {
  std::error_code error;
  const std::filesystem::path link = "/proc/self/exe";
  const auto program = std::filesystem::read_symlink(link, error);
  return std::filesystem::exists(program, error) ? program : link;
}

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
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!is_ours(*entry)) entries.emplace_back(*entry);
  }
  return entries;
}

// What exec takes; `texts` must outlive it.
std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (auto& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// How much of the run's end a rank's end explains.
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
    for (const pid_t process : processes_) {
      if (process != 0) retry([&] { return ::waitpid(process, nullptr, 0); });
    }
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void start() {
    auto arguments = wanted_.arguments;
    const auto argument_pointers = pointers_to(arguments);
    const auto program = wanted_.program.empty() ? own_program() : wanted_.program;
    const pid_t launcher = ::getpid();
    processes_.reserve(static_cast<size_t>(wanted_.count));
    for (int64_t rank = 0; rank < wanted_.count; ++rank) {
      auto environment = environment_of(rank, wanted_);
      const auto environment_pointers = pointers_to(environment);
      // No handler may run in the child while it shares the launcher's pipe.
      sigset_t all, mask;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &mask);
      const pid_t process = ::fork();
      if (process == 0) {  // async-signal-safe calls only: other threads may have held any lock
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != launcher) ::_exit(kLostAnother);  // dead before the line above
        ::setsid();
        SignalPipe::forget();
        ::sigprocmask(SIG_SETMASK, &mask, nullptr);
        ::execve(program.c_str(), argument_pointers.data(), environment_pointers.data());
        ::_exit(127);
      }
      const int error = errno;
      pthread_sigmask(SIG_SETMASK, &mask, nullptr);
      if (process < 0)
        throw ResourceError("cannot start rank " + std::to_string(rank) + ": " +
                            std::generic_category().message(error) + "; lower --processes");
      processes_.push_back(process);
    }
  }

  bool any_left() const {
    return std::ranges::any_of(processes_, [](pid_t process) { return process != 0; });
  }

  void send(int signal) const {
    for (const pid_t process : processes_) {
      if (process != 0) ::kill(process, signal);
    }
  }

  // The ends of the ranks that died since the last call. `sent` is the stop signal that they got.
  std::vector<RanksEnd> reap(int sent) {
    std::vector<RanksEnd> ends;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      if (processes_[rank] == 0) continue;
      int status = 0;
      const pid_t answer = retry([&] { return ::waitpid(processes_[rank], &status, WNOHANG); });
      if (answer == 0) continue;
      processes_[rank] = 0;
      // Without an answer somebody else has waited for it, and how it ended nobody knows.
      RanksEnd end{.status = answer < 0 ? kLostAnother : WEXITSTATUS(status),
                   .rank = static_cast<int64_t>(rank)};
      if (WIFSIGNALED(status)) {
        end.signal = WTERMSIG(status);
        end.status = end.signal == sent ? 128 + sent : kLostAnother;
      }
      ends.push_back(end);
    }
    return ends;
  }

 private:
  const LocalRanks& wanted_;
  std::vector<pid_t> processes_;  // by rank; 0 once it has been waited for
};

// Until then, for poll: rounded up, or it would return before and turn idly.
int milliseconds_until(Clock::time_point time) {
  if (time == kNever) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
}

}  // namespace

std::string RanksEnd::message() const {
  if (rank < 0) return "";
  const std::string name = "rank " + std::to_string(rank);
  if (signal == 0) return name + " ended with status " + std::to_string(status);
  return name + " was killed by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

RanksEnd run_local_ranks(const LocalRanks& wanted) {
  const SignalPipe signals;
  RankProcesses ranks(wanted);
  ranks.start();
  RanksEnd decided;
  int sent = 0;
  Clock::time_point sent_at;
  Clock::time_point kill_at = kNever;
  bool killed = false;
  while (ranks.any_left()) {
    const auto arrived = signals.wait(milliseconds_until(kill_at));
    const auto ends = ranks.reap(sent);
    if (killed) continue;
    const bool open = weight(decided) <= weight({.status = kLostAnother});
    for (const auto& end : ends) {
      if (open && weight(end) > weight(decided)) decided = end;
    }
    const auto now = Clock::now();
    if (decided.status != kDone && kill_at == kNever) kill_at = now + wanted.grace;
    bool kill = now >= kill_at;
    for (const int signal : arrived) {
      if (signal == SIGCHLD || !ranks.any_left()) continue;
      if (sent == 0) {
        sent = signal;
        sent_at = now;
        ranks.send(signal);
      } else if (now - sent_at >= kOneRequest) {
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
  return decided;
}

}  // namespace dtopp

// Runs the launcher in a child process, so that tests can send it signals. A pipe carries the output of the
// launcher and its ranks; it ends when all of them have ended.
#pragma once

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dtopp/launch/local_ranks.h"

namespace dtopp::launch {

// The process state: the field after the program's name in /proc/PID/stat.
inline char state_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return text.empty() ? '-' : text[text.rfind(')') + 2];
}

inline void wait_for_state(const std::string& process, char state) {
  while (state_of(process) != state) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

class LauncherProcess {
 public:
  explicit LauncherProcess(
      const LocalRanks& ranks, const std::function<void()>& prepare = [] {}) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    process_ = ::fork();
    if (process_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      prepare();
      const RanksEnd end = run_local_ranks(ranks);
      const std::string message = end.message() + "\n";
      (void)!::write(STDOUT_FILENO, message.data(), message.size());
      ::_exit(end.status);
    }
    ::close(ends[1]);
    pipe_ = ends[0];
  }
  ~LauncherProcess() {
    if (process_ != 0) {
      send(SIGKILL);
      status();
    }
    ::close(pipe_);
  }
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  pid_t process() const { return process_; }
  void send(int signal) const { ::kill(process_, signal); }
  // Signals that arrive before SIGCONT are delivered together.
  void pause() const {
    send(SIGSTOP);
    wait_for_state(std::to_string(process_), 'T');
  }

  // Returns the next line, or "end" when every writer has ended.
  std::string line() {
    std::string text;
    for (char c = 0;; text += c) {
      pollfd readable{pipe_, POLLIN, 0};
      if (::poll(&readable, 1, 20'000) != 1) throw std::runtime_error("nothing for 20 s");
      if (::read(pipe_, &c, 1) != 1) return "end";
      if (c == '\n') return text;
    }
  }
  std::vector<std::string> lines(int count) {
    std::vector<std::string> lines;
    for (int i = 0; i < count; ++i) lines.push_back(line());
    return lines;
  }

  // Waits for the launcher and returns its exit status in the shell's convention.
  int status() {
    int status = 0;
    ::waitpid(process_, &status, 0);
    process_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t process_ = 0;
  int pipe_ = -1;
};

}  // namespace dtopp::launch

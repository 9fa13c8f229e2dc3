#include "dtopp/launch/timed_child.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include "dtopp/base/descriptor.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"

namespace dtopp::launch {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr size_t kMostOutput = size_t{64} << 10;
constexpr auto kBetweenLooks = 5ms;
// A process with a hung device may not end even when it is killed; stop waiting for it after this time.
constexpr auto kLastWait = 5s;

// A pipe for the output of a child; reading does not block.
class OutputPipe {
 public:
  OutputPipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) fail();
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~OutputPipe() {
    ::close(ends_[0]);
    close_writing();
  }
  OutputPipe(const OutputPipe&) = delete;
  OutputPipe& operator=(const OutputPipe&) = delete;

  int writing() const { return ends_[1]; }
  void close_writing() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  void read_into(std::string& text) const {
    std::array<char, 4096> buffer{};
    for (size_t taken = 0; taken < kMostOutput;) {
      const auto count = retry([&] { return ::read(ends_[0], buffer.data(), buffer.size()); });
      if (count <= 0) break;
      text.append(buffer.data(), static_cast<size_t>(count));
      taken += static_cast<size_t>(count);
    }
    if (text.size() > kMostOutput) text.erase(0, text.size() - kMostOutput);
  }

  [[noreturn]] static void fail() {
    throw ResourceError("cannot start a program: " + std::generic_category().message(errno));
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

}  // namespace

TimedChildEnd run_timed_child(ChildProgram child, std::chrono::milliseconds limit) {
  OutputPipe pipe;
  child.output = pipe.writing();
  const pid_t process = start_child(child);
  if (process < 0) OutputPipe::fail();
  pipe.close_writing();
  TimedChildEnd result;
  const auto end_before = [&](Clock::time_point time) {
    auto end = reap_child(process);
    for (; !end && Clock::now() < time; end = reap_child(process)) {
      std::this_thread::sleep_for(kBetweenLooks);
      pipe.read_into(result.output);
    }
    pipe.read_into(result.output);
    return end;
  };
  if (const auto end = end_before(Clock::now() + limit)) {
    if (end->signal != 0) result.failure = "killed by " + signal_name(end->signal);
    if (end->status != 0) result.failure = "ended with status " + std::to_string(end->status);
    return result;
  }
  ::kill(-process, SIGKILL);  // its process group
  ::kill(process, SIGKILL);
  end_before(Clock::now() + kLastWait);
  result.failure = "did not end within " + format("%g s", std::chrono::duration<double>(limit).count());
  return result;
}

}  // namespace dtopp::launch

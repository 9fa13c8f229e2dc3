#include "cli/console.h"

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <system_error>

#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"
#include "dtopp/launch/child_process.h"

namespace dtopp::cli {
namespace {

// open() returns the lowest free descriptor. Call with descriptors in ascending order, so that it returns
// this one.
void occupy(int descriptor, int unusable_mode) {
  if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) (void)::open("/dev/null", unusable_mode);
}

// A signal handler can use only globals, and it may run in any thread.
// Time of the first SIGTERM or SIGINT, in nanoseconds of the steady clock; 0: none.
std::atomic<int64_t> requested_at = 0;
std::atomic<bool> requested = false;
std::atomic<bool> is_impatient = true;
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_signal(int signal) {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
  int64_t first = 0;
  requested = true;
  if (!launch::may_insist(signal)) return;
  if (requested_at.compare_exchange_strong(first, now)) return;
  if (is_impatient && std::chrono::nanoseconds(now - first) >= launch::kOneRequest) _exit(128 + signal);
}

// dl_iterate_phdr calls this for every loaded file. The executable comes first and has no name.
int add_own_file(dl_phdr_info* info, size_t /*size*/, void* files) {
  const fs::path path = info->dlpi_name;
  auto& own = *static_cast<std::vector<fs::path>*>(files);
  if (own.empty()) own.emplace_back("/proc/self/exe");
  if (path.filename().string().starts_with("libdtopp_")) own.push_back(path);
  return 0;
}

}  // namespace

void print_message(const std::string& text) {
  // A rank that was killed may have left its status line.
  const char* const clear = ::isatty(STDERR_FILENO) == 1 ? "\r\x1b[K" : "";
  std::fprintf(stderr, "%sdtopp: %s\n", clear, text.c_str());
}

void guard_standard_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  occupy(STDIN_FILENO, O_WRONLY);
  occupy(STDOUT_FILENO, O_RDONLY);
  occupy(STDERR_FILENO, O_RDONLY);
}

void flush_standard_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  const std::string reason = errno != 0 ? " (" + std::generic_category().message(errno) + ")" : "";
  throw DataError("standard output: cannot be written", reason,
                  "; free space or check the receiving program");
}

void end_process(int status) {
#ifdef NDEBUG
  std::fflush(nullptr);
  ::_exit(status);
#else
  std::exit(status);  // sanitizers and coverage report there
#endif
}

void stop_on_signals(bool second_ends) {
  is_impatient = second_ends;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  if (!launch::ignores_hangup()) sigaction(SIGHUP, &action, nullptr);
}

bool stop_requested() { return requested; }

StopToken stop_token() { return StopToken(requested); }

std::string program_version() {
  std::vector<fs::path> files;
  ::dl_iterate_phdr(add_own_file, &files);
  std::string hashes;
  for (const fs::path& file : files) hashes += hash_file(file);
  return DTOPP_VERSION ", build " + hash_bytes(std::as_bytes(std::span(hashes))).substr(0, 12);
}

}  // namespace dtopp::cli

#include "cli/standard_streams.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "dtopp/base/errors.h"

namespace dtopp::cli {
namespace {

// open() returns the lowest free descriptor. Call with descriptors in ascending order, so that it returns
// this one.
void occupy(int descriptor, int unusable_mode) {
  if (::fcntl(descriptor, F_GETFD) < 0 && errno == EBADF) (void)::open("/dev/null", unusable_mode);
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
  throw DataError("standard output: cannot be written" + reason +
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

}  // namespace dtopp::cli

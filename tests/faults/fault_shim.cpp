// Intercepts (through LD_PRELOAD) the system calls that change files below FAULT_ROOT. Calls are counted from
// 1. FAULT_MODE selects the effect on call number FAULT_AT:
//
//   once, forever  the call (with forever, every later one too) fails with the error number FAULT_ERRNO
//   short          a write takes only a part of its bytes
//   kill           the process is killed before the call
//   stop           the process is stopped before the call, until SIGCONT
//   slow           this call and every later one take FAULT_MILLISECONDS longer
//
// FAULT_PLAN names a file "RANK CALL" that replaces FAULT_AT: only the process whose variable RANK has this
// value counts to CALL. A process reads the file at its first call. Without the file nothing happens.
//
// With FAULT_NO_EXCHANGE, exchanging two names fails, as on NFS. The shim writes the name of the call to the
// file FAULT_FIRED. It appends one line per successful call, and per write to standard output, to the file
// FAULT_LOG, which the power-loss model reads.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

constexpr long kUnread = -1;

struct Shim {
  std::string root = variable("FAULT_ROOT");
  std::string mode = variable("FAULT_MODE");
  int error_number = std::atoi(variable("FAULT_ERRNO"));
  std::atomic<long> calls = 0, at = kUnread;
  int log = *variable("FAULT_LOG") ? raw_open(variable("FAULT_LOG")) : -1;

  static int raw_open(const char* path) {
    return static_cast<int>(
        ::syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  }
};

// A forked process counts anew.
Shim& shim() {
  static Shim instance;
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] {
    instance.calls = 0;
    instance.at = kUnread;
  });
  (void)registered;
  return instance;
}

long planned_call() {
  const auto plan = ::syscall(SYS_openat, AT_FDCWD, variable("FAULT_PLAN"), O_RDONLY | O_CLOEXEC);
  char text[64] = "";
  const auto size = ::syscall(SYS_read, plan, text, sizeof(text) - 1);
  ::syscall(SYS_close, plan);
  long rank = -1, call = 0;
  if (size <= 0 || std::sscanf(text, "%ld %ld", &rank, &call) != 2) return 0;
  return std::to_string(rank) == variable("RANK") ? call : 0;
}

// Read at the first call, because the environment of a forked process may have changed.
long wanted_call() {
  Shim& state = shim();
  if (state.at == kUnread)
    state.at = *variable("FAULT_PLAN") ? planned_call() : std::atol(variable("FAULT_AT"));
  return state.at;
}

std::string path_of(int descriptor) {
  const auto link = "/proc/self/fd/" + std::to_string(descriptor);
  char path[4096];
  const auto size = ::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), path, sizeof(path));
  return size > 0 ? std::string(path, size) : "";
}

std::string path_at(int directory, const char* path) {
  if (path[0] == '/') return path;
  return (directory == AT_FDCWD ? std::string(".") : path_of(directory)) + "/" + path;
}

bool is_watched(const std::string& path) { return !shim().root.empty() && path.starts_with(shim().root); }

// Whether this call fails; errno then holds the reason.
bool goes_wrong(const char* name) {
  auto& state = shim();
  const long call = ++state.calls;
  const long at = wanted_call();
  const bool is_the_one = call == at;
  if (is_the_one) {
    const int fired = Shim::raw_open(variable("FAULT_FIRED"));
    ::syscall(SYS_write, fired, name, std::strlen(name));
    ::syscall(SYS_close, fired);
  }
  if (is_the_one && state.mode == "kill") ::syscall(SYS_kill, ::getpid(), SIGKILL);
  if (is_the_one && state.mode == "stop") ::syscall(SYS_kill, ::getpid(), SIGSTOP);
  if (state.mode == "slow" && call >= at) ::usleep(1000 * std::atoi(variable("FAULT_MILLISECONDS")));
  if (!(is_the_one && state.mode == "once") && !(call >= at && state.mode == "forever")) return false;
  errno = state.error_number;
  return true;
}

void record(const std::string& line) {
  if (shim().log < 0) return;
  const auto text = line + "\n";
  ::syscall(SYS_write, shim().log, text.data(), text.size());
}

std::string hexadecimal(const void* data, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<const unsigned char*>(data)[i]);
    text += digits;
  }
  return text;
}

// A separate name per kind of open, because a caller may tolerate a failed open for reading.
const char* open_name(int flags) {
  if (flags & O_DIRECTORY) return "open directory";
  return (flags & O_ACCMODE) == O_RDONLY ? "open to read" : "open";
}

int open_at(int directory, const char* path, int flags, mode_t mode) {
  const auto full = path_at(directory, path);
  if (is_watched(full) && goes_wrong(open_name(flags))) return -1;
  const int descriptor = static_cast<int>(::syscall(SYS_openat, directory, path, flags, mode));
  if (is_watched(full) && descriptor >= 0)
    record("open\t" + std::to_string(descriptor) + "\t" + ((flags & O_CREAT) ? "1" : "0") + "\t" +
           ((flags & O_TRUNC) ? "1" : "0") + "\t" + full);
  return descriptor;
}

mode_t mode_argument(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) ? va_arg(arguments, mode_t) : 0;
}

int change_names(const char* name, long number, int directory, const char* path, int flags) {
  const auto full = path_at(directory, path);
  if (is_watched(full) && goes_wrong(name)) return -1;
  const int result = static_cast<int>(::syscall(number, directory, path, flags));
  if (is_watched(full) && result == 0) record(std::string(name) + "\t" + full);
  return result;
}

int rename_with(const char* from, const char* to, unsigned flags) {
  const char* const name = flags ? "exchange" : "rename";
  if (flags && is_watched(to) && *variable("FAULT_NO_EXCHANGE")) {
    errno = EINVAL;
    return -1;
  }
  if (is_watched(to) && goes_wrong(name)) return -1;
  const int result = static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags));
  if (is_watched(to) && result == 0) record(std::string(name) + "\t" + from + "\t" + to);
  return result;
}

int sync(int descriptor, long number) {
  const bool watched = is_watched(path_of(descriptor));
  if (watched && goes_wrong("fsync")) return -1;
  const int result = static_cast<int>(::syscall(number, descriptor));
  if (watched && result == 0) record("fsync\t" + std::to_string(descriptor));
  return result;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open_at(AT_FDCWD, path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open_at(directory, path, flags, mode);
}

int openat64(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_argument(flags, arguments);
  va_end(arguments);
  return open_at(directory, path, flags, mode);
}

// std::ofstream opens its files with this function. No fault is injected here.
FILE* fopen64(const char* path, const char* mode) {
  static const auto next =
      reinterpret_cast<FILE* (*)(const char*, const char*)>(::dlsym(RTLD_NEXT, "fopen64"));
  FILE* const file = next(path, mode);
  const auto full = path_at(AT_FDCWD, path);
  if (file && mode[0] != 'r' && is_watched(full))
    record("open\t" + std::to_string(::fileno(file)) + "\t1\t" + (mode[0] == 'w' ? "1" : "0") + "\t" + full);
  return file;
}

ssize_t write(int descriptor, const void* data, size_t size) {
  const bool watched = is_watched(path_of(descriptor));
  if (watched && goes_wrong("write")) return -1;
  if (watched && shim().mode == "short" && shim().calls == wanted_call()) size = (size + 1) / 2;
  const auto result = ::syscall(SYS_write, descriptor, data, size);
  if (watched && result > 0)
    record("write\t" + std::to_string(descriptor) + "\t" + hexadecimal(data, result));
  if (descriptor == STDOUT_FILENO && result > 0) record("mark\t" + hexadecimal(data, result));
  return result;
}

int fsync(int descriptor) { return sync(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return sync(descriptor, SYS_fdatasync); }

int close(int descriptor) {
  const bool watched = is_watched(path_of(descriptor));
  const auto flags = watched ? ::syscall(SYS_fcntl, descriptor, F_GETFL) : 0;
  const bool wrong = watched && goes_wrong((flags & O_ACCMODE) == O_RDONLY ? "close after reading" : "close");
  const int error_number = errno;
  const int result =
      static_cast<int>(::syscall(SYS_close, descriptor));  // Linux closes it even if an error is reported
  if (watched && result == 0) record("close\t" + std::to_string(descriptor));
  if (!wrong) return result;
  errno = error_number;
  return -1;
}

int mkdir(const char* path, mode_t mode) {
  if (is_watched(path) && goes_wrong("mkdir")) return -1;
  const int result = static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (is_watched(path) && result == 0) record(std::string("mkdir\t") + path);
  return result;
}

int rename(const char* from, const char* to) { return rename_with(from, to, 0); }

int renameat2(int, const char* from, int, const char* to, unsigned flags) {
  return rename_with(from, to, flags);
}

int unlink(const char* path) { return change_names("unlink", SYS_unlinkat, AT_FDCWD, path, 0); }
int rmdir(const char* path) { return change_names("unlink", SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) {
  const int result = change_names("unlink", SYS_unlinkat, AT_FDCWD, path, 0);
  return result < 0 && errno == EISDIR ? rmdir(path) : result;
}
int unlinkat(int directory, const char* path, int flags) {
  return change_names("unlink", SYS_unlinkat, directory, path, flags);
}

}  // extern "C"

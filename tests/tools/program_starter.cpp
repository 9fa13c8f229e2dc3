// Starts a program repeatedly without repeating its constructors (through LD_PRELOAD). Those of torch take
// 0.2 seconds, longer than most commands of the tests.
//
// The program runs its constructors, but this library runs instead of main(). It receives requests from the
// socket with the descriptor PROGRAM_STARTER. A request is one message of words that end with NUL: the
// working directory, the number of arguments, the arguments, the environment. It carries four descriptors:
// the standard streams and a pipe. A forked process calls main(). The pipe receives the number of this
// process, and its wait status when it has ended.
//
// If this process starts its own program, as a launcher does for each rank, the child that it forks calls
// main() instead of execve(). It starts with the launcher's memory.
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using Main = int (*)(int, char**, char**);
Main program_main = nullptr;
int command_line = -1;  // of a process that has called main(): what /proc/self/cmdline holds after execve()

struct Request {
  std::string words;
  std::array<int, 4> descriptors;
};

struct Started {
  pid_t process;
  int process_descriptor;
  int pipe;
};

// Returns false if the other end is closed.
bool receive(int socket, Request& request) {
  request.words.resize(1 << 20);
  iovec part{request.words.data(), request.words.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(request.descriptors))> control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const auto size = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (size <= 0) return false;
  request.words.resize(static_cast<size_t>(size));
  std::memcpy(request.descriptors.data(), CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(request.descriptors));
  return true;
}

// `arguments` and `environment` end with nullptr.
[[noreturn]] void call_main(const std::vector<char*>& arguments, char* const* environment) {
  command_line = static_cast<int>(::syscall(SYS_memfd_create, "command line", MFD_CLOEXEC));
  const int count = static_cast<int>(arguments.size()) - 1;
  for (int i = 0; i < count; ++i) {
    const char* const word = arguments[static_cast<size_t>(i)];
    if (::syscall(SYS_write, command_line, word, std::strlen(word) + 1) < 0) ::_exit(127);
  }
  ::clearenv();
  for (; *environment; ++environment) ::putenv(*environment);
  const int status = program_main(count, const_cast<char**>(arguments.data()), environ);
  std::fflush(nullptr);
  ::_exit(status);
}

[[noreturn]] void answer(Request& request) {
  for (int stream = 0; stream < 3; ++stream) ::dup2(request.descriptors[static_cast<size_t>(stream)], stream);
  ::syscall(SYS_close_range, 3U, ~0U, 0U);
  std::vector<char*> words;
  char* const end = request.words.data() + request.words.size();
  for (char* word = request.words.data(); word < end; word += std::strlen(word) + 1) words.push_back(word);
  if (::chdir(words[0]) != 0) ::_exit(127);
  words.push_back(nullptr);
  const auto environment = words.begin() + 2 + std::atoi(words[1]);
  std::vector<char*> arguments(words.begin() + 2, environment);
  arguments.push_back(nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  call_main(arguments, &*environment);
}

void report(int pipe, int value) {
  [[maybe_unused]] const auto written = ::write(pipe, &value, sizeof(value));
}

Started start(Request& request) {
  const pid_t process = ::fork();
  if (process == 0) answer(request);
  for (size_t stream = 0; stream < 3; ++stream) ::close(request.descriptors[stream]);
  report(request.descriptors[3], process);
  return {process, static_cast<int>(::syscall(SYS_pidfd_open, process, 0)), request.descriptors[3]};
}

void finish(const Started& ended) {
  int status = 0;
  ::waitpid(ended.process, &status, 0);
  report(ended.pipe, status);
  ::close(ended.pipe);
  ::close(ended.process_descriptor);
}

int serve(int /*argc*/, char** /*argv*/, char** /*environment*/) {
  ::signal(SIGPIPE, SIG_IGN);  // a caller may have closed its pipe
  const int socket = std::atoi(std::getenv("PROGRAM_STARTER"));
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  std::vector<Started> running;
  Request request;
  while (true) {
    std::vector<pollfd> watched{{socket, POLLIN, 0}};
    for (const Started& started : running) watched.push_back({started.process_descriptor, POLLIN, 0});
    if (::poll(watched.data(), watched.size(), -1) < 0) continue;
    std::vector<Started> remaining;
    for (size_t i = 0; i < running.size(); ++i) {
      if (watched[i + 1].revents != 0)
        finish(running[i]);
      else
        remaining.push_back(running[i]);
    }
    running = remaining;
    if (watched[0].revents == 0) continue;
    if (!receive(socket, request)) return 0;
    running.push_back(start(request));
  }
}

void close_on_exec() {
  std::vector<int> descriptors;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    descriptors.push_back(std::atoi(entry.path().filename().c_str()));
  for (const int descriptor : descriptors) {
    if (::syscall(SYS_fcntl, descriptor, F_GETFD) & FD_CLOEXEC) ::syscall(SYS_close, descriptor);
  }
}

template <class Function>
Function* next(const char* name, Function*) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int execve(const char* path, char* const arguments[], char* const environment[]) {
  std::error_code error;
  if (command_line < 0 || std::filesystem::read_symlink("/proc/self/exe", error) != path)
    return next("execve", execve)(path, arguments, environment);
  close_on_exec();
  std::vector<char*> words;
  for (char* const* word = arguments; *word; ++word) words.push_back(*word);
  words.push_back(nullptr);
  call_main(words, environment);
}

// std::ifstream opens its files with this function.
FILE* fopen64(const char* path, const char* mode) {
  const bool own = command_line >= 0 && std::strcmp(path, "/proc/self/cmdline") == 0;
  const auto file = "/proc/self/fd/" + std::to_string(command_line);
  return next("fopen64", fopen64)(own ? file.c_str() : path, mode);
}

// The C library's start of each program calls this with main().
int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(), void (*linker_fini)(),
                      void* stack_end) {
  program_main = main;
  return next("__libc_start_main", __libc_start_main)(serve, argc, argv, init, fini, linker_fini, stack_end);
}

}  // extern "C"

// Starts a program repeatedly without repeating its constructors (through LD_PRELOAD). Those of torch take
// 0.2 seconds, longer than most commands of the tests.
//
// The program runs its constructors, but this library runs instead of main(). It receives requests from the
// socket with the descriptor PROGRAM_STARTER. A request is one message of words that end with NUL: the
// working directory, the number of arguments, the arguments, the environment. It carries four descriptors:
// the standard streams and a pipe. A forked process calls main(). The pipe receives the number of this
// process, and its wait status when it has ended.
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using Main = int (*)(int, char**, char**);
Main program_main = nullptr;

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

[[noreturn]] void call_main(Request& request) {
  for (int stream = 0; stream < 3; ++stream) ::dup2(request.descriptors[static_cast<size_t>(stream)], stream);
  ::syscall(SYS_close_range, 3U, ~0U, 0U);
  std::vector<char*> words;
  char* const end = request.words.data() + request.words.size();
  for (char* word = request.words.data(); word < end; word += std::strlen(word) + 1) words.push_back(word);
  if (::chdir(words[0]) != 0) ::_exit(127);
  const auto count = static_cast<size_t>(std::atoi(words[1]));
  ::signal(SIGPIPE, SIG_DFL);
  ::clearenv();
  for (size_t i = 2 + count; i < words.size(); ++i) ::putenv(words[i]);
  std::vector<char*> arguments(words.begin() + 2, words.begin() + 2 + static_cast<std::ptrdiff_t>(count));
  arguments.push_back(nullptr);
  const int status = program_main(static_cast<int>(count), arguments.data(), environ);
  std::fflush(nullptr);
  ::_exit(status);
}

void report(int pipe, int value) {
  [[maybe_unused]] const auto written = ::write(pipe, &value, sizeof(value));
}

Started start(Request& request) {
  const pid_t process = ::fork();
  if (process == 0) call_main(request);
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

}  // namespace

// The C library's start of each program calls this with main().
extern "C" int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                                 void (*linker_fini)(), void* stack_end) {
  program_main = main;
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto next = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  return next(serve, argc, argv, init, fini, linker_fini, stack_end);
}

// How threads of OpenMP wait for each other, which they do at the end of every parallel loop: awake for some
// 10 microseconds, then asleep. Spinning for milliseconds, as libgomp would, takes the core from the very
// thread that is waited for wherever another program runs on it; never spinning makes a step 8 % longer where
// none does (docs/performance.md). libgomp reads its environment when it is loaded, so the program starts
// itself once more with that set, before any library has been initialised.
#include <algorithm>
#include <array>
#include <climits>
#include <string_view>

#include <alloca.h>
#include <sys/auxv.h>
#include <unistd.h>

namespace {

// What the user said of it stands. It is also what ends the second start.
bool says_how_to_wait(std::string_view entry) {
  return entry.starts_with("OMP_WAIT_POLICY=") || entry.starts_with("GOMP_SPINCOUNT=");
}

// The C library is not initialised yet: system calls and the stack alone. Where this fails, threads spin.
void start_again_to_wait_briefly(int /*argc*/, char** argv, char** environment) {
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (says_how_to_wait(environment[count])) return;
  }
  if (getauxval(AT_BASE) == 0) return;  // started as `ld.so dtopp …`: the program of this process is ld.so
  std::array<char, PATH_MAX> program{};
  if (readlink("/proc/self/exe", program.data(), program.size() - 1) < 0) return;
  char policy[] = "GOMP_SPINCOUNT=10000";
  auto** more = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
  std::copy_n(environment, count, more);
  more[count] = policy;
  more[count + 1] = nullptr;
  execve(program.data(), argv, more);
}

}  // namespace

// Run by the dynamic linker before the constructors of all libraries.
extern "C" [[gnu::section(".preinit_array"),
             gnu::used]] void (*const start_again)(int, char**, char**) = start_again_to_wait_briefly;

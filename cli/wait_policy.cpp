// Sets how OpenMP threads wait at the end of a parallel loop: they spin for about 10 microseconds, then
// sleep.
//
// libgomp would spin for milliseconds. If another program uses the cores, such a thread takes the core of the
// thread that it waits for. Without any spinning a step takes 8 % longer on an idle machine
// (benchmarks/RESULTS.md).
//
// libgomp reads its environment when it is loaded. The program therefore sets GOMP_SPINCOUNT and executes
// itself again, before any library is initialized.
#include <algorithm>
#include <array>
#include <climits>
#include <string_view>

#include <alloca.h>
#include <sys/auxv.h>
#include <unistd.h>

namespace {

// A setting of the user is kept. This check also prevents a third start.
bool says_how_to_wait(std::string_view entry) {
  return entry.starts_with("OMP_WAIT_POLICY=") || entry.starts_with("GOMP_SPINCOUNT=");
}

// The C library is not initialized yet, so only system calls and the stack can be used. If this fails,
// threads spin.
void start_again_to_wait_briefly(int /*argc*/, char** argv, char** environment) {
  size_t count = 0;
  for (; environment[count] != nullptr; ++count)
    if (says_how_to_wait(environment[count])) return;
  if (getauxval(AT_BASE) == 0) return;  // started as `ld.so dtopp …`: /proc/self/exe is ld.so
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

// The dynamic linker runs this before the constructors of all libraries.
extern "C" [[gnu::section(".preinit_array"),
             gnu::used]] void (*const start_again)(int, char**, char**) = start_again_to_wait_briefly;

// A fiber: one thread of a block on the host, with its state and the context from which it resumes.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include "tests/ops/cuda/cuda_on_host.h"

namespace dtopp::ops::cuda_on_host {

// Not a power of two: otherwise the same variable of every fiber would use the same cache set.
constexpr size_t kStackBytes = (128 << 10) + 192;

enum class State { kReady, kAtBlockBarrier, kAtWarpBarrier, kWaiting, kDone };

// The context from which a fiber or the scheduler resumes. After the first entry, jumps do the work of
// swapcontext without its system calls. ASan supports swapcontext only.
struct Context {
  ucontext_t entry;
  jmp_buf place;
  bool entered = false;

  void leave_for(Context& next) {
#if defined(__SANITIZE_ADDRESS__)
    swapcontext(&entry, &next.entry);
#else
    entered = true;
    if (_setjmp(place) != 0) return;
    if (next.entered) _longjmp(next.place, 1);
    setcontext(&next.entry);
#endif
  }
};

struct Fiber {
  Context context;
  unsigned char* stack = nullptr;
  State state = State::kReady;
  Where where;
  unsigned mask = 0;
  int exchanges = 0;
  std::function<bool()> condition;
  void* fake_stack = nullptr;  // ASan's fake stack, kept while another fiber runs
};

}  // namespace dtopp::ops::cuda_on_host

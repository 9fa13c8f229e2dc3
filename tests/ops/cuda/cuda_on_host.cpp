#include "tests/ops/cuda/cuda_on_host.h"

#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#include "tests/ops/cuda/fiber.h"

dtopp::ops::cuda_on_host::Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace dtopp::ops::cuda_on_host {
namespace {

constexpr int kLanes = 32;
constexpr std::align_val_t kSharedAlignment{1024};

struct SharedDeleter {
  void operator()(unsigned char* memory) const { operator delete[](memory, kSharedAlignment); }
};

std::mt19937_64 order_source(1);  // NOLINT: tests only
Device simulated;                 // NOLINT: tests only

// The values that a warp's lanes pass, for the present exchange and the previous one, which a slower lane may
// still read.
struct Warp {
  alignas(kSlotBytes) unsigned char slots[2][kLanes * kSlotBytes];
};

std::string name_of(const Where& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

class Block;
Block* current = nullptr;  // NOLINT: tests only

class Block {
 public:
  Block(const Grid& grid, const std::function<void()>& kernel)
      : grid_(grid),
        kernel_(kernel),
        fibers_(grid.threads),
        warps_(grid.threads / kLanes),
        stacks_(new unsigned char[fibers_.size() * kStackBytes]),
        shared_(static_cast<unsigned char*>(operator new[](grid.shared_bytes, kSharedAlignment))) {
    current = this;
    for (size_t thread = 0; thread < fibers_.size(); ++thread) {
      fibers_[thread].stack = stacks_.get() + thread * kStackBytes;
      start(fibers_[thread]);
    }
  }

  void run() {
    begin_block();
    std::memset(shared_.get(), 0xFF, grid_.shared_bytes);
    std::memset(warps_.data(), 0xFF, warps_.size() * sizeof(Warp));
    for (Fiber& fiber : fibers_) {
      fiber.state = State::kReady;
      fiber.exchanges = 0;
    }
    std::vector<int> order(fibers_.size());
    std::iota(order.begin(), order.end(), 0);
    // The warps to hold back until no other warp can proceed; drawn again after each barrier of the block.
    uint64_t held = order_source();
    while (!all_are(State::kDone)) {
      std::shuffle(order.begin(), order.end(), order_source);
      bool moved = false;
      for (const int thread : order) {
        if ((held >> (thread / kLanes) & 1U) != 0 || !can_go_on(fibers_[thread])) continue;
        resume(thread);
        moved = true;
        if (failure_) std::rethrow_exception(failure_);
      }
      const State released = release();
      if (released == State::kAtBlockBarrier) {
        held = order_source();
      } else if (!moved && released == State::kReady) {
        if (held == 0) report_stuck();
        held = 0;
      }
    }
    end_block();
  }

  unsigned char* shared() { return shared_.get(); }
  size_t shared_bytes() const { return grid_.shared_bytes; }

  void wait_until(const std::function<bool()>& condition, const Where& where) {
    fibers_[thread_].condition = condition;
    wait(State::kWaiting, where);
  }

  void wait(State state, const Where& where) {
    Fiber& fiber = fibers_[thread_];
    fiber.state = state;
    fiber.where = where;
    leave(fiber);
  }

  const unsigned char* exchange(unsigned mask, const void* value, size_t bytes, const Where& where) {
    Fiber& fiber = fibers_[thread_];
    const int lane = thread_ % kLanes;
    if ((mask >> lane & 1U) == 0) fail("a lane outside the mask takes part", where);
    unsigned char* slots = warps_[thread_ / kLanes].slots[fiber.exchanges++ % 2];
    if (bytes > 0) std::memcpy(slots + lane * kSlotBytes, value, bytes);
    fiber.mask = mask;
    wait(State::kAtWarpBarrier, where);
    return slots;
  }

  int thread() const { return thread_; }

 private:
  // A fiber runs one thread of successive blocks, because creating a fiber costs a system call.
  [[noreturn]] static void enter() {
    Block& block = *current;
    block.arrived(nullptr);
    for (;;) {
      try {
        block.kernel_();
      } catch (...) {
        block.failure_ = std::current_exception();
      }
      block.wait(State::kDone, Where::current());
    }
  }

  static bool can_go_on(Fiber& fiber) {
    if (fiber.state == State::kWaiting && fiber.condition()) fiber.state = State::kReady;
    return fiber.state == State::kReady;
  }

  static void start(Fiber& fiber) {
    ucontext_t& entry = fiber.context.entry;
    getcontext(&entry);
    entry.uc_stack.ss_sp = fiber.stack;
    entry.uc_stack.ss_size = kStackBytes;
    entry.uc_link = nullptr;
    makecontext(&entry, &Block::enter, 0);
  }

  void resume(int thread) {
    thread_ = thread;
    threadIdx = {static_cast<unsigned>(thread), 0, 0};
#if defined(__SANITIZE_ADDRESS__)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, fibers_[thread].stack, kStackBytes);
#endif
    scheduler_.leave_for(fibers_[thread].context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  void leave(Fiber& fiber) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fiber.fake_stack, scheduler_stack_, scheduler_bytes_);
#endif
    fiber.context.leave_for(scheduler_);
    arrived(fiber.fake_stack);
  }

  void arrived([[maybe_unused]] void* fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack_, &scheduler_bytes_);
#endif
  }

  bool all_are(State state) const {
    return std::all_of(fibers_.begin(), fibers_.end(), [&](const Fiber& f) { return f.state == state; });
  }

  static bool same_place(const Fiber& a, const Fiber& b) {
    return a.state == b.state && a.where.line() == b.where.line() &&
           std::strcmp(a.where.file_name(), b.where.file_name()) == 0;
  }

  // Releases the fibers at a barrier that all have reached. Returns the barrier's state, or kReady if none is
  // complete.
  State release() {
    State released = State::kReady;
    if (fibers_[0].state == State::kAtBlockBarrier &&
        std::all_of(fibers_.begin(), fibers_.end(),
                    [&](const Fiber& f) { return same_place(f, fibers_[0]); })) {
      for (Fiber& fiber : fibers_) fiber.state = State::kReady;
      return State::kAtBlockBarrier;
    }
    for (size_t thread = 0; thread < fibers_.size(); ++thread) {
      const Fiber& fiber = fibers_[thread];
      if (fiber.state != State::kAtWarpBarrier) continue;
      Fiber* warp = &fibers_[thread - thread % kLanes];
      const unsigned mask = fiber.mask;
      bool complete = true;
      for (int lane = 0; lane < kLanes; ++lane) {
        if ((mask >> lane & 1U) != 0) {
          complete = complete && same_place(warp[lane], fiber) && warp[lane].mask == mask &&
                     warp[lane].exchanges == fiber.exchanges;
        }
      }
      if (!complete) continue;
      for (int lane = 0; lane < kLanes; ++lane) {
        if ((mask >> lane & 1U) != 0) warp[lane].state = State::kReady;
      }
      released = State::kAtWarpBarrier;
    }
    return released;
  }

  [[noreturn]] void report_stuck() const {
    std::string text = std::string(grid_.op) + ": a barrier is not reached by all threads:";
    for (size_t thread = 0; thread < fibers_.size(); ++thread) {
      const Fiber& fiber = fibers_[thread];
      text += "\n  thread " + std::to_string(thread) + ": ";
      text += fiber.state == State::kDone ? "done" : "at " + name_of(fiber.where);
    }
    throw std::runtime_error(text);
  }

  const Grid& grid_;
  const std::function<void()>& kernel_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::unique_ptr<unsigned char[]> stacks_;
  std::unique_ptr<unsigned char, SharedDeleter> shared_;
  Context scheduler_;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_bytes_ = 0;
  std::exception_ptr failure_;
  int thread_ = 0;
};

}  // namespace

void set_seed(uint64_t seed) { order_source.seed(seed); }
uint64_t draw() { return order_source(); }
const Device& device() { return simulated; }
void set_device(const Device& device) { simulated = device; }

void run(const Grid& grid, const std::function<void()>& kernel) {
  const int64_t blocks = grid.blocks * grid.blocks_y;
  if (blocks == 0) return;
  const auto refuse = [&](bool wrong, const char* what) {
    if (wrong) throw std::runtime_error(std::string(grid.op) + ": a launch that CUDA refuses: " + what);
  };
  refuse(grid.threads % kLanes != 0 || grid.threads <= 0 || grid.threads > 1024, "threads of a block");
  refuse(grid.blocks < 0 || grid.blocks > 0x7FFFFFFF || grid.blocks_y < 0 || grid.blocks_y > 0xFFFF,
         "blocks");
  refuse(grid.shared_bytes > simulated.shared_bytes, "more shared memory than the device has");
  blockDim = {static_cast<unsigned>(grid.threads), 1, 1};
  gridDim = {static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.blocks_y), 1};
  std::vector<int64_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), order_source);
  Block block(grid, kernel);
  for (const int64_t index : order) {
    blockIdx = {static_cast<unsigned>(index % grid.blocks), static_cast<unsigned>(index / grid.blocks), 0};
    block.run();
  }
}

unsigned char* shared_memory() { return current->shared(); }
void wait_for_block(const Where& where) { current->wait(State::kAtBlockBarrier, where); }
const unsigned char* exchange(unsigned mask, const void* value, size_t bytes, const Where& where) {
  return current->exchange(mask, value, bytes, where);
}
void wait_until(const std::function<bool()>& condition, const Where& where) {
  current->wait_until(condition, where);
}
int lane() { return current->thread() % kLanes; }
int thread() { return current->thread(); }
size_t shared_bytes() { return current->shared_bytes(); }

void fail(const char* what, const Where& where) {
  throw std::runtime_error(std::string(what) + " at " + name_of(where));
}

}  // namespace dtopp::ops::cuda_on_host

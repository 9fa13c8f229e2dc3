// Wrappers of PTX instructions: asynchronous copies to shared memory, and barriers between the threads that
// fill it and those that read it. The tests provide the same functions for a CPU
// (tests/ops/cuda/async_on_host.h).
#pragma once

#include <cstdint>

namespace dtopp::ops::cuda {

#if defined(__CUDACC__)

// Returns the shared-memory address that the instructions below take.
__device__ inline uint32_t shared_address(const void* place) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(place));
}

// Starts to copy 16 bytes to `to`. With bytes = 0 instead of 16 it writes zeros and reads nothing.
__device__ inline void copy_async(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// Starts to load the 128-byte line at `from` into the L2 cache.
__device__ inline void prefetch_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Adds to two floats at an 8-byte-aligned address, without waiting. No other thread may access these floats.
__device__ inline void add_two(float* to, float first, float second) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second) : "memory");
#else
  atomicAdd(to, first);
  atomicAdd(to + 1, second);
#endif
}

// Makes a group of this thread's copies since the last call.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all copy groups of this thread, except the last kGroups, are complete.
template <int kGroups>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// The same for a run-time number of 0, 1 or 2 groups.
__device__ inline void wait_for_all_copies_but(int groups) {
  if (groups >= 2) return wait_for_copies<2>();
  if (groups == 1) return wait_for_copies<1>();
  wait_for_copies<0>();
}

// The functions below need compute capability 9.0. After this call, wgmma reads what this thread has written
// to shared memory, and its copies that it has waited for.
__device__ inline void fence_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Initializes an 8-byte barrier in shared memory. A phase ends when `arrivals` threads have arrived. One
// thread calls this, then all threads call __syncthreads.
__device__ inline void make_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Makes the compiler recompute values derived from `value` in each loop iteration instead of keeping them in
// registers.
__device__ inline uint32_t computed_anew(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Waits until the phase with this parity has ended. The first phase has parity 0, the next 1, then 0 again.
// On a new barrier, waiting for parity 1 returns at once.
__device__ inline void wait_for_phase(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Sets the number of registers per thread. All warps of a warp group call it together.
template <int kRegisters>
__device__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif

}  // namespace dtopp::ops::cuda

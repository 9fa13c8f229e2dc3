// Runs CUDA kernels on a CPU, for tests. It declares CUDA's built-ins for g++ (-include puts it before a
// kernel file) and a launch function.
//
// A launch runs blocks one after another and each thread of a block as a fiber. Fibers switch only at
// barriers and warp operations, in a newly drawn order, so results with a missing barrier depend on the
// order. Shared memory has exactly the size of the launch and starts as 0xFF bytes, so ASan finds accesses
// outside it.
//
// Throws: std::runtime_error if some threads miss a barrier, a lane reads from a lane that does not take
//         part, or the device would trap
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <source_location>
#include <stdexcept>

#include "dtopp/ops/cuda/cuda_types.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace dtopp::ops::cuda_on_host {

struct Dim3 {
  unsigned x = 0, y = 0, z = 0;
};

struct Grid {
  const char* op;
  int64_t blocks, blocks_y;
  int threads;
  size_t shared_bytes;
};

// Sets the seed of the draws that order fibers and blocks.
void set_seed(uint64_t seed);
uint64_t draw();

struct Device {
  int multiprocessors = 3;
  int capability = 90;
  size_t shared_bytes = 227 << 10;
};
const Device& device();
void set_device(const Device& device);

void run(const Grid& grid, const std::function<void()>& kernel);

unsigned char* shared_memory();

using Where = std::source_location;

void wait_for_block(const Where& where);

// Waits until other threads make the condition true.
void wait_until(const std::function<bool()>& condition, const Where& where);

constexpr size_t kSlotBytes = 32;

// Waits for the lanes of the mask. Returns the values of the warp's lanes, kSlotBytes apart.
const unsigned char* exchange(unsigned mask, const void* value, size_t bytes, const Where& where);

// The index of this lane in its warp.
int lane();
int thread();
size_t shared_bytes();

[[noreturn]] void fail(const char* what, const Where& where);

template <typename Value>
Value from_lane(unsigned mask, const Value& value, int source, const Where& where) {
  static_assert(sizeof(Value) <= kSlotBytes);
  const unsigned char* slots = exchange(mask, &value, sizeof(Value), where);
  if ((mask >> source & 1U) == 0) fail("a lane reads from one outside the mask", where);
  Value result;
  std::memcpy(&result, slots + kSlotBytes * source, sizeof(Value));
  return result;
}

}  // namespace dtopp::ops::cuda_on_host

extern dtopp::ops::cuda_on_host::Dim3 threadIdx, blockIdx, blockDim, gridDim;

using DtoppWhere = dtopp::ops::cuda_on_host::Where;

inline void __syncthreads(const DtoppWhere& where = DtoppWhere::current()) {
  dtopp::ops::cuda_on_host::wait_for_block(where);
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFU, const DtoppWhere& where = DtoppWhere::current()) {
  dtopp::ops::cuda_on_host::exchange(mask, nullptr, 0, where);
}

template <typename Value>
Value __shfl_xor_sync(unsigned mask, Value value, int distance,
                      const DtoppWhere& where = DtoppWhere::current()) {
  return dtopp::ops::cuda_on_host::from_lane(mask, value, dtopp::ops::cuda_on_host::lane() ^ distance, where);
}

template <typename Value>
Value __shfl_up_sync(unsigned mask, Value value, int distance,
                     const DtoppWhere& where = DtoppWhere::current()) {
  const int lane = dtopp::ops::cuda_on_host::lane();
  return dtopp::ops::cuda_on_host::from_lane(mask, value, lane < distance ? lane : lane - distance, where);
}

template <typename Value>
Value __shfl_sync(unsigned mask, Value value, int source, const DtoppWhere& where = DtoppWhere::current()) {
  return dtopp::ops::cuda_on_host::from_lane(mask, value, source, where);
}

inline unsigned __ballot_sync(unsigned mask, bool predicate,
                              const DtoppWhere& where = DtoppWhere::current()) {
  const unsigned char vote = predicate ? 1 : 0;
  const unsigned char* slots = dtopp::ops::cuda_on_host::exchange(mask, &vote, 1, where);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((mask >> lane & 1U) != 0 && slots[dtopp::ops::cuda_on_host::kSlotBytes * lane] != 0)
      votes |= 1U << lane;
  }
  return votes;
}

template <typename Number>
Number atomicAdd(Number* to, Number value) {
  const Number before = *to;
  *to += value;
  return before;
}

inline int min(int a, int b) { return a < b ? a : b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
[[noreturn]] inline void __trap(const DtoppWhere& where = DtoppWhere::current()) {
  dtopp::ops::cuda_on_host::fail("trap", where);
}

struct DtoppNvBfloat16 {
  uint16_t bits;
};
// Rounds to nearest even; NaNs become 0x7FFF, as on the device.
inline DtoppNvBfloat16 __float2bfloat16_rn(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {0x7FFF};
  return {static_cast<uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16)};
}
inline uint16_t __bfloat16_as_ushort(DtoppNvBfloat16 value) { return value.bits; }
struct DtoppNvBfloat162 {
  DtoppNvBfloat16 x, y;
};
inline DtoppNvBfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

// The functions that cuda_kernel.h and swiglu_cuda.h define for nvcc.
namespace dtopp::ops::cuda {

inline Device current_device() {
  const cuda_on_host::Device& device = cuda_on_host::device();
  return {device.multiprocessors, device.capability, device.shared_bytes};
}

template <typename... Parameters, typename... Arguments>
void launch(const Launch& how, void (*kernel)(Parameters...), const Arguments&... arguments) {
  cuda_on_host::run({how.op, how.blocks, how.blocks_y, how.threads, how.shared_bytes},
                    [&] { kernel(static_cast<Parameters>(arguments)...); });
}

using cuda_on_host::shared_memory;

inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_reciprocal(float x) { return 1 / x; }

}  // namespace dtopp::ops::cuda

#include "tests/ops/cuda/async_on_host.h"

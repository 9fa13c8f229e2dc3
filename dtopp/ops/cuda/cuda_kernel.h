// Building blocks of CUDA kernels: their launch and shared memory, loads and stores of packs of numbers, and
// sums over warps and blocks in a fixed order. Every thread of the warp or block must call the sums.
//
// nvcc compiles kernel files for a GPU. The tests compile them for a CPU and run them there. They define what
// is only defined for nvcc here, and its built-ins (tests/ops/cuda/cuda_on_host.h).
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>

#include "dtopp/ops/cuda/cuda_types.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#endif

namespace dtopp::ops::cuda {

#if defined(__CUDACC__)

constexpr size_t kPlainSharedBytes = 48 << 10;  // more needs a function attribute

inline Device current_device() {
  const auto check = [](cudaError_t error) {
    if (error != cudaSuccess)
      throw std::runtime_error(std::string("the CUDA device's attributes cannot be read: ") +
                               cudaGetErrorString(error));
  };
  int device = 0;
  check(cudaGetDevice(&device));
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device));
    return value;
  };
  return {attribute(cudaDevAttrMultiProcessorCount),
          10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor),
          static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))};
}

// Throws std::runtime_error "<op>: …" if the launch fails.
template <typename... Parameters, typename... Arguments>
void launch(const Launch& how, void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (how.blocks == 0 || how.blocks_y == 0) return;
  const dim3 grid(static_cast<unsigned>(how.blocks), static_cast<unsigned>(how.blocks_y));
  cudaError_t error = cudaSuccess;
  if (how.shared_bytes > kPlainSharedBytes)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(how.shared_bytes));
  if (error == cudaSuccess) {
    kernel<<<grid, how.threads, how.shared_bytes, how.stream>>>(static_cast<Parameters>(arguments)...);
    error = cudaGetLastError();
  }
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(how.op) +
                             ": a kernel could not be launched: " + cudaGetErrorString(error));
}

// Returns the block's shared memory, `shared_bytes` of the launch, aligned to 1,024 bytes.
__device__ inline unsigned char* shared_memory() {
  extern __shared__ __align__(1024) unsigned char dtopp_shared_memory[];
  return dtopp_shared_memory;
}

#endif

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;
constexpr int64_t kVectorBytes = 16;  // the widest load

// Device code may read these constants, but not call the functions that produce them.
template <typename Real>
constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
template <typename Real>
constexpr Real kLowest = std::numeric_limits<Real>::lowest();
template <typename Real>
constexpr Real kNotANumber = std::numeric_limits<Real>::quiet_NaN();

inline int64_t ceil_divide(int64_t count, int64_t by) { return (count + by - 1) / by; }

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ inline int warp_index() { return static_cast<int>(threadIdx.x) / kWarp; }

__device__ inline float load(float value) { return value; }
__device__ inline double load(double value) { return value; }
__device__ inline float load(Bfloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}

__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(double* to, double value) { *to = value; }
__device__ inline void store(Bfloat16* to, float value) {
  to->bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

// Neighboring numbers that are loaded and stored together.
template <typename Scalar, int kWidth>
struct alignas(sizeof(Scalar) * kWidth < kVectorBytes ? sizeof(Scalar) * kWidth : kVectorBytes) Pack {
  Scalar of[kWidth];
};

template <typename Scalar>
constexpr int kWidest = static_cast<int>(kVectorBytes / sizeof(Scalar));

// Returns true if rows of this width, at these addresses, consist of whole packs of the greatest width.
template <typename Scalar, typename... Pointers>
bool takes_packs(int64_t width, const Pointers*... rows) {
  const auto aligned = [](const void* row) { return reinterpret_cast<uintptr_t>(row) % kVectorBytes == 0; };
  return width % kWidest<Scalar> == 0 && (aligned(rows) && ...);
}

// Calls `body` with the pack width that rows of this width and these addresses allow.
template <typename Scalar, typename Body, typename... Pointers>
void with_packs(int64_t width, const Body& body, const Pointers*... rows) {
  if (takes_packs<Scalar>(width, rows...)) return body(std::integral_constant<int, kWidest<Scalar>>());
  body(std::integral_constant<int, 1>());
}

template <int kWidth, typename Scalar>
__device__ inline Pack<Scalar, kWidth> load_pack(const Scalar* row, int64_t pack) {
  return reinterpret_cast<const Pack<Scalar, kWidth>*>(row)[pack];
}

template <int kWidth, typename Scalar>
__device__ inline void store_pack(Scalar* row, int64_t pack, const Pack<Scalar, kWidth>& value) {
  reinterpret_cast<Pack<Scalar, kWidth>*>(row)[pack] = value;
}

template <typename Number>
__device__ inline Number warp_sum(Number value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

// Ignores NaNs.
template <typename Number>
__device__ inline Number warp_max(Number value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Number other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

// Returns the combination of the warps' values to all threads of the block, in the order of warps. scratch:
// one number per warp.
template <typename Number, typename Combine>
__device__ Number combine_warps(Number value, Number* scratch, const Combine& combine) {
  __syncthreads();  // the previous call's numbers may still be in use
  if (lane_index() == 0) scratch[warp_index()] = value;
  __syncthreads();
  Number all = scratch[0];
  for (int warp = 1; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) all = combine(all, scratch[warp]);
  return all;
}

// Returns the sum, or the largest value, of the block's threads to all of them. scratch: one number per warp.
template <typename Number>
__device__ Number block_sum(Number value, Number* scratch) {
  return combine_warps(warp_sum(value), scratch, [](Number sum, Number other) { return sum + other; });
}

template <typename Number>
__device__ Number block_max(Number value, Number* scratch) {
  return combine_warps(warp_max(value), scratch,
                       [](Number largest, Number other) { return other > largest ? other : largest; });
}

// Returns the sum over the lanes up to and including this one.
__device__ inline int warp_scan(int value) {
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int before = __shfl_up_sync(kAllLanes, value, distance);
    if (lane_index() >= distance) value += before;
  }
  return value;
}

// Returns the sum over the threads before this one, and the block's sum in *total. scratch: one number per
// warp.
__device__ inline int block_scan(int value, int* scratch, int* total) {
  const int inclusive = warp_scan(value);
  __syncthreads();
  if (lane_index() == kWarp - 1) scratch[warp_index()] = inclusive;
  __syncthreads();
  int before = 0;
  *total = 0;
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp) {
    if (warp < warp_index()) before += scratch[warp];
    *total += scratch[warp];
  }
  return before + inclusive - value;
}

}  // namespace dtopp::ops::cuda

// Launches kernels and provides their shared memory. nvcc compiles kernel files for a GPU. The tests compile
// them for a CPU and run them there, with replacements for nvcc's built-ins (tests/ops/cuda/cuda_on_host.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "dtopp/ops/cuda/cuda_types.h"

namespace dtopp::ops::cuda {

// Launches nothing if `blocks` or `blocks_y` is 0.
struct Launch {
  const char* op;  // the name that errors begin with
  Stream stream;
  int64_t blocks;
  int threads;  // per block
  size_t shared_bytes = 0;
  int64_t blocks_y = 1;
};

struct Device {
  int multiprocessors;
  int capability;       // compute capability; 90 is 9.0
  size_t shared_bytes;  // maximum per block
};

constexpr size_t kPlainSharedBytes = 48 << 10;  // more needs a function attribute

#if defined(__CUDACC__)

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

#else

inline Device current_device() {
  const cuda_on_host::Device device = cuda_on_host::device();
  return {device.multiprocessors, device.capability, device.shared_bytes};
}

template <typename... Parameters, typename... Arguments>
void launch(const Launch& how, void (*kernel)(Parameters...), const Arguments&... arguments) {
  cuda_on_host::run({how.op, how.blocks, how.blocks_y, how.threads, how.shared_bytes},
                    [&] { kernel(static_cast<Parameters>(arguments)...); });
}

inline unsigned char* shared_memory() { return cuda_on_host::shared_memory(); }

#endif

}  // namespace dtopp::ops::cuda

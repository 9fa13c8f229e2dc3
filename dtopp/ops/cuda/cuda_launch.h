// How kernels are launched and find their shared memory. nvcc compiles kernel files for a GPU. The tests
// compile them for a CPU and run them there, with declarations of what nvcc has built in
// (tests/ops/cuda/cuda_on_host.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "dtopp/ops/cuda/cuda_stream.h"

namespace dtopp::cuda {

// No blocks: nothing is launched.
struct Launch {
  const char* op;  // the name errors begin with
  Stream stream;
  int64_t blocks;
  int threads;  // of a block
  size_t shared_bytes = 0;
  int64_t blocks_y = 1;
};

struct Device {
  int multiprocessors;
  int capability;       // 90: 9.0
  size_t shared_bytes;  // a block may have
};

constexpr size_t kPlainSharedBytes = 48 << 10;  // more has to be asked for

#if defined(__CUDACC__)

inline Device current_device() {
  const auto check = [](cudaError_t error) {
    if (error != cudaSuccess)
      throw std::runtime_error(std::string("the CUDA device cannot be asked: ") + cudaGetErrorString(error));
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

// Throws std::runtime_error beginning with the op's name where the launch is refused.
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

// The block's shared memory, `shared_bytes` of the launch, from a multiple of 1,024 bytes on.
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

}  // namespace dtopp::cuda

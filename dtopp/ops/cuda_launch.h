// How kernels are launched and find their shared memory. nvcc compiles kernel files for a GPU. Any other
// compiler needs what CUDA builds in declared first, which is how the tests run every kernel on a CPU
// (tests/ops/cuda/cuda_on_host.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "dtopp/ops/cuda_stream.h"

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

#if defined(__CUDACC__)

// Throws std::runtime_error beginning with the op's name where the launch is refused.
template <typename... Parameters, typename... Arguments>
void launch(const Launch& how, void (*kernel)(Parameters...), const Arguments&... arguments) {
  if (how.blocks == 0 || how.blocks_y == 0) return;
  const dim3 grid(static_cast<unsigned>(how.blocks), static_cast<unsigned>(how.blocks_y));
  kernel<<<grid, how.threads, how.shared_bytes, how.stream>>>(static_cast<Parameters>(arguments)...);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(how.op) +
                             ": a kernel could not be launched: " + cudaGetErrorString(error));
}

// The block's shared memory, `shared_bytes` of the launch.
__device__ inline unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char dtopp_shared_memory[];
  return dtopp_shared_memory;
}

#else

template <typename... Parameters, typename... Arguments>
void launch(const Launch& how, void (*kernel)(Parameters...), const Arguments&... arguments) {
  cuda_on_host::run({how.op, how.blocks, how.blocks_y, how.threads, how.shared_bytes},
                    [&] { kernel(static_cast<Parameters>(arguments)...); });
}

inline unsigned char* shared_memory() { return cuda_on_host::shared_memory(); }

#endif

}  // namespace dtopp::cuda

// Functions that need the CUDA runtime: the current stream, and the operators behind device.h's queries.
#include <array>
#include <cstdio>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "dtopp/ops/cuda/cuda_tensor.h"

namespace dtopp::device {
namespace {

void check_index(const char* op, int64_t index) {
  const int devices = c10::cuda::device_count();
  TORCH_CHECK(index >= 0 && index < devices, op, ": expected the index of one of ", devices,
              " CUDA devices, got ", index);
}

cudaDeviceProp properties_of(const char* op, int64_t index) {
  check_index(op, index);
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, static_cast<int>(index)));
  return properties;
}

// Returns (name, compute capability, bytes of memory).
std::tuple<std::string, int64_t, int64_t> device_facts(int64_t index) {
  const cudaDeviceProp properties = properties_of("device_facts", index);
  return {properties.name, 10 * properties.major + properties.minor,
          static_cast<int64_t>(properties.totalGlobalMem)};
}

// Returns the UUID in the format of `nvidia-smi -L`.
std::string device_uuid(int64_t index) {
  const cudaDeviceProp properties = properties_of("device_uuid", index);
  std::string text = "GPU";
  for (int byte = 0; byte < 16; ++byte) {
    const bool begins_group = byte == 0 || (byte >= 4 && byte <= 10 && byte % 2 == 0);
    std::array<char, 4> digits{};
    std::snprintf(digits.data(), digits.size(), begins_group ? "-%02x" : "%02x",
                  static_cast<unsigned char>(properties.uuid.bytes[byte]));
    text += digits.data();
  }
  return text;
}

int64_t free_device_memory(int64_t index) {
  check_index("free_device_memory", index);
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def("device_facts(int index) -> (str, int, int)", device_facts);
  m.def("device_uuid(int index) -> str", device_uuid);
  m.def("free_device_memory(int index) -> int", free_device_memory);
}

}  // namespace dtopp::device

namespace dtopp::ops::cuda {

Stream current_stream(const Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

}  // namespace dtopp::ops::cuda

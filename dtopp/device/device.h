// The devices that operators run on: whether a CUDA device can be used, what a device is called, its memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// Loads libdtopp_cuda.so from the folder of libdtopp_ops.so. Returns what is missing to use a CUDA device,
// the library or the device, or nullopt where one can be used. To be called before any other use of torch,
// which looks for CUDA devices once in a process and remembers the answer.
std::optional<std::string> find_cuda();

// Where find_cuda looks for the library.
std::filesystem::path cuda_library();

// How many there are that this process may use, once find_cuda() has found that there are any.
int64_t cuda_devices();

// Whether a driver for CUDA devices is installed. Quick, where find_cuda loads all of torch's CUDA.
bool has_cuda_driver();

// "the CPU (2 threads)", "cuda:0 (NVIDIA H200)".
std::string describe_device(const at::Device& device);

// Of a CUDA device.
struct DeviceFacts {
  std::string name;        // "NVIDIA H200"
  int64_t capability = 0;  // 90: 9.0
  uint64_t memory_bytes = 0;
  int64_t driver = 0;  // the version of CUDA that its driver knows, 13000: 13.0
};
DeviceFacts device_facts(const at::Device& device);

// Of all devices of all hosts this one, "GPU-4b5f…"; "cpu" for any CPU.
std::string device_identity(const at::Device& device);

// Bytes that can still be allocated; nullopt for the CPU, of whose memory torch knows nothing.
std::optional<uint64_t> free_device_memory(const at::Device& device);

struct AllocatedMemory {
  uint64_t now = 0, peak = 0;  // bytes, freed ones kept for reuse included
};
// Memory of the device that torch holds, in use or kept for reuse; nullopt for the CPU.
std::optional<AllocatedMemory> allocated_device_memory(const at::Device& device);

// From here on equal inputs give equal bits on this device, as they always do on a CPU. Slower. To be called
// before the first operation.
void make_deterministic(const at::Device& device);

}  // namespace dtopp

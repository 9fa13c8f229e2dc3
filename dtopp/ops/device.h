// The devices that operators run on: whether a CUDA device can be used, what a device is called, its memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dtopp/ops/torch.h"

namespace dtopp {

// Loads libdtopp_cuda.so, which lies beside libdtopp_ops.so, and answers what is missing to use a CUDA
// device: the library or the device; nullopt where nothing is. To be asked before anything else is done with
// torch: what it finds out about CUDA in a process, it finds out once.
std::optional<std::string> find_cuda();

// Whether a driver for CUDA devices is installed. Quick, where find_cuda loads all of torch's CUDA.
bool has_cuda_driver();

// "the CPU (2 threads)", "cuda:0 (NVIDIA H200)".
std::string describe_device(const at::Device& device);

// Bytes that can still be allocated; nullopt for the CPU, whose memory is not torch's to know.
std::optional<uint64_t> free_device_memory(const at::Device& device);

struct AllocatedMemory {
  uint64_t now = 0, peak = 0;  // bytes, freed ones kept for reuse included
};
// What torch has taken of the device's own memory; nullopt for the CPU.
std::optional<AllocatedMemory> allocated_device_memory(const at::Device& device);

// From here on the device's results depend on nothing but its input; a CPU's never do. Slower. To be called
// before the first operation.
void make_deterministic(const at::Device& device);

}  // namespace dtopp

// The devices that operators run on: availability of CUDA, names, memory and deterministic mode.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::device {
// Loads libdtopp_cuda.so from the folder of libdtopp_ops.so. Returns nullopt if a CUDA device can be used,
// else a text that names what is missing: the library or the device.
//
// Call it before any other use of torch, because torch looks for CUDA devices once per process and stores the
// result.
std::optional<std::string> find_cuda();

// Returns the number of CUDA devices that this process may use. Call it after find_cuda() has succeeded.
int64_t cuda_devices();

// Returns "the CPU (2 threads)" or "cuda:0 (NVIDIA H200)".
std::string describe_device(const at::Device& device);

// Properties of a CUDA device.
struct DeviceFacts {
  std::string name;        // "NVIDIA H200"
  int64_t capability = 0;  // compute capability; 90 is 9.0
  uint64_t memory_bytes = 0;
};
DeviceFacts device_facts(const at::Device& device);

// Returns an identifier that is unique among all devices of all hosts, "GPU-4b5f…", or "cpu" for any CPU.
std::string device_identity(const at::Device& device);

// Returns the bytes that can still be allocated. Returns nullopt for the CPU, because torch does not report
// its memory.
std::optional<uint64_t> free_device_memory(const at::Device& device);

struct AllocatedMemory {
  uint64_t now = 0, peak = 0;  // bytes, including freed memory that is kept for reuse
};
// Returns the device memory that torch holds, in use or kept for reuse, or nullopt for the CPU.
std::optional<AllocatedMemory> allocated_device_memory(const at::Device& device);

// Makes later operations on this device deterministic: equal inputs give equal bits, as they always do on a
// CPU. It is slower. Call it before the first operation.
void make_deterministic(const at::Device& device);

// Selects the device for auto, cpu or cuda, and makes it the calling thread's current device. Call it before
// any other use of torch.
//
// auto selects a CUDA device if one is usable, else the CPU. `local_rank` is the process's index among the
// ranks of this host and selects the device of that index. If the process sees only one device (its own
// CUDA_VISIBLE_DEVICES), it takes that one.
//
// Throws:        UsageError that begins with `option`, the user's name of the setting, if cuda is required
//                but unusable, or if the host has fewer devices than ranks
at::Device compute_device(config::Device wish, const std::string& option, int64_t local_rank = 0);

// For a process that starts ranks but computes nothing: throws UsageError as above if cuda is required but
// unusable.
void require_device(config::Device wish, const std::string& option);

// auto: bf16 if the device has bf16 matrix instructions.
at::ScalarType compute_type(config::Precision precision, const at::Device& device);

}  // namespace dtopp::device

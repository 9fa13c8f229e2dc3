#include "dtopp/device/device.h"

#include <cstdlib>

#include <dlfcn.h>

#include <c10/core/AllocatorConfig.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "dtopp/base/errors.h"
#include "dtopp/ops/core/call_op.h"
#include "dtopp/ops/core/library_folder.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::device {
namespace {

// The number of rows per expert varies between steps. Unless memory segments can grow, memory freed in one
// step is too short for the next. Settings of the user have priority.
void let_segments_grow() {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"})
    if (std::getenv(name) != nullptr) return;
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
}

std::optional<std::string> load_library() {
  const fs::path path = ops::ops_library_folder() / "libdtopp_cuda.so";
  std::error_code error;
  if (!fs::exists(path, error))
    return "libdtopp_cuda.so is missing from " + path.parent_path().string() + "; run `make build CUDA=1`";
  // Loading the library registers its operators, and libtorch_cuda.so registers torch's own for CUDA. The
  // library is never closed, because the operators stay registered.
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr)
    return "libdtopp_cuda.so cannot be loaded: " + std::string(dlerror());
  let_segments_grow();
  return std::nullopt;
}

at::Device own_cuda_device(const std::string& option, int64_t local_rank) {
  const int64_t devices = cuda_devices();
  if (devices > 1 && local_rank >= devices)
    throw UsageError(option + ": rank " + std::to_string(local_rank) +
                     " of this host (from 0) has no device, because the host has " + std::to_string(devices) +
                     " CUDA devices; start one rank per device, or choose cpu on all ranks");
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(devices > 1 ? local_rank : 0));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

}  // namespace

std::optional<std::string> find_cuda() {
  if (auto missing = load_library()) return missing;
  if (!at::hasCUDA())
    return "no CUDA device was found; `nvidia-smi` lists the devices that the driver supports";
  return std::nullopt;
}

int64_t cuda_devices() { return c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount(); }

std::string describe_device(const at::Device& device) {
  const int threads = at::get_num_threads();
  if (device.is_cpu())
    return "the CPU (" + std::to_string(threads) + (threads == 1 ? " thread)" : " threads)");
  return device.str() + " (" + device_facts(device).name + ")";
}

DeviceFacts device_facts(const at::Device& device) {
  using Facts = std::tuple<std::string, int64_t, int64_t>;
  const auto [name, capability, memory] = ops::call_op<"dtopp::device_facts", Facts(int64_t)>(device.index());
  return {name, capability, static_cast<uint64_t>(memory)};
}

std::string device_identity(const at::Device& device) {
  if (device.is_cpu()) return "cpu";
  return ops::call_op<"dtopp::device_uuid", std::string(int64_t)>(device.index());
}

std::optional<uint64_t> free_device_memory(const at::Device& device) {
  if (device.is_cpu()) return std::nullopt;
  return static_cast<uint64_t>(ops::call_op<"dtopp::free_device_memory", int64_t(int64_t)>(device.index()));
}

std::optional<AllocatedMemory> allocated_device_memory(const at::Device& device) {
  if (device.is_cpu()) return std::nullopt;
  const auto reserved =
      at::getDeviceAllocator(device.type())->getDeviceStats(device.index()).reserved_bytes[0];
  return AllocatedMemory{static_cast<uint64_t>(reserved.current), static_cast<uint64_t>(reserved.peak)};
}

void make_deterministic(const at::Device& device) {
  if (device.is_cpu()) return;
  // cuBLAS reads this variable at its first use.
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

void require_device(config::Device wish, const std::string& option) {
  if (wish != config::Device::kCuda) return;
  if (const auto missing = find_cuda())
    throw UsageError(option + ": cuda cannot be used: " + *missing + "; or choose cpu or auto");
}

at::Device compute_device(config::Device wish, const std::string& option, int64_t local_rank) {
  // It is quick, while find_cuda loads all of torch's CUDA libraries.
  static const bool has_driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr;
  if (wish == config::Device::kCpu || (wish == config::Device::kAuto && !has_driver)) return at::kCPU;
  require_device(wish, option);
  return find_cuda() ? at::Device(at::kCPU) : own_cuda_device(option, local_rank);
}

at::ScalarType compute_type(config::Precision precision, const at::Device& device) {
  if (precision == config::Precision::kAuto) return ops::has_bf16_matmul(device) ? at::kBFloat16 : at::kFloat;
  return precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat;
}

}  // namespace dtopp::device

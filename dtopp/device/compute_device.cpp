#include "dtopp/device/compute_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "dtopp/base/errors.h"
#include "dtopp/device/device.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::device {

namespace {

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

void require_device(config::Device wish, const std::string& option) {
  if (wish != config::Device::kCuda) return;
  if (const auto missing = find_cuda())
    throw UsageError(option + ": cuda cannot be used: " + *missing + "; or choose cpu or auto");
}

at::Device compute_device(config::Device wish, const std::string& option, int64_t local_rank) {
  if (wish == config::Device::kCpu || (wish == config::Device::kAuto && !has_cuda_driver())) return at::kCPU;
  require_device(wish, option);
  return find_cuda() ? at::Device(at::kCPU) : own_cuda_device(option, local_rank);
}

at::ScalarType compute_type(config::Precision precision, const at::Device& device) {
  if (precision == config::Precision::kAuto) return ops::has_bf16_matmul(device) ? at::kBFloat16 : at::kFloat;
  return precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat;
}

}  // namespace dtopp::device

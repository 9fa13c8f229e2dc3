#include "dtopp/train/compute_device.h"

#include "dtopp/base/errors.h"
#include "dtopp/ops/device.h"
#include "dtopp/ops/linear.h"

namespace dtopp {

at::Device compute_device(Device wish, const std::string& option) {
  if (wish == Device::kCpu || (wish == Device::kAuto && !has_cuda_driver())) return at::kCPU;
  const auto missing = find_cuda();
  if (!missing) return at::Device(at::kCUDA, 0);
  if (wish == Device::kCuda)
    throw UsageError(option + ": cuda cannot be used: " + *missing + "; or choose cpu or auto");
  return at::kCPU;
}

at::ScalarType compute_type(Precision precision, const at::Device& device) {
  if (precision == Precision::kAuto) return has_bf16_matmul(device) ? at::kBFloat16 : at::kFloat;
  return precision == Precision::kBf16 ? at::kBFloat16 : at::kFloat;
}

}  // namespace dtopp

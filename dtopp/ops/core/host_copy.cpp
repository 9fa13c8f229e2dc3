#include "dtopp/ops/core/host_copy.h"

#include <algorithm>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace dtopp::ops {

// The destination is page-locked, because copies to pageable memory make the host wait.
HostCopy::HostCopy(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_cpu()) {
      tensors_.push_back(tensor);
      continue;
    }
    const auto options = tensor.options().device(at::kCPU).pinned_memory(true);
    tensors_.push_back(at::empty(tensor.sizes(), options).copy_(tensor, /*non_blocking=*/true));
  }
  if (tensors.empty() || tensors[0].is_cpu()) return;
  const at::Device device = tensors[0].device();
  arrival_.emplace(device.type());
  arrival_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

const std::vector<at::Tensor>& HostCopy::get() const {
  if (arrival_) arrival_->synchronize();
  return tensors_;
}

at::Tensor to_device(const at::Tensor& host, const at::Device& device) {
  if (device.is_cpu()) return host;
  return host.pin_memory().to(device, /*non_blocking=*/true);
}

void copy_from_bytes(std::span<const std::byte> bytes, const at::Tensor& tensor) {
  TORCH_CHECK(bytes.size() == tensor.nbytes(), "copy_from_bytes: got ", bytes.size(), " bytes, expected ",
              tensor.nbytes());
  // The copy is bytewise, because bytes from a file may not be aligned for the tensor's type.
  const auto size = static_cast<int64_t>(bytes.size());
  const at::Tensor source = at::from_blob(const_cast<std::byte*>(bytes.data()), {size}, at::kByte);
  tensor.view({-1}).view(at::kByte).copy_(source);
}

}  // namespace dtopp::ops

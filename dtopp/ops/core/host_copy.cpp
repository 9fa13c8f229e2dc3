#include "dtopp/ops/core/host_copy.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace dtopp::ops {
namespace {

Tensor host_buffer(const Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(!tensor.is_cpu()));
}

// An event after the work issued to the current stream of the tensors' device; none on a CPU.
std::optional<c10::Event> event_after(const std::vector<Tensor>& tensors) {
  if (tensors.empty() || tensors[0].is_cpu()) return std::nullopt;
  const at::Device device = tensors[0].device();
  std::optional<c10::Event> event(device.type());
  event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace

// The destination is page-locked, because copies to pageable memory make the host wait.
HostCopy::HostCopy(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors)
    tensors_.push_back(tensor.is_cpu() ? tensor : host_buffer(tensor).copy_(tensor, /*non_blocking=*/true));
  arrival_ = event_after(tensors);
}

const std::vector<Tensor>& HostCopy::get() const {
  if (arrival_) arrival_->synchronize();
  return tensors_;
}

// Filling the buffers takes their memory now, where a lack of it can still be reported.
HostSnapshot::HostSnapshot(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) tensors_.push_back(host_buffer(tensor).zero_());
}

void HostSnapshot::take(const std::vector<Tensor>& tensors) {
  for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].copy_(tensors.at(i), /*non_blocking=*/true);
  arrival_ = event_after(tensors);
}

Tensor to_device(const Tensor& host, const at::Device& device) {
  if (device.is_cpu()) return host;
  return host.pin_memory().to(device, /*non_blocking=*/true);
}

void copy_from_bytes(std::span<const std::byte> bytes, const Tensor& tensor) {
  TORCH_CHECK(bytes.size() == tensor.nbytes(), "copy_from_bytes: got ", bytes.size(), " bytes, expected ",
              tensor.nbytes());
  // The copy is bytewise, because bytes from a file may not be aligned for the tensor's type.
  const auto size = std::ssize(bytes);
  const Tensor source = at::from_blob(const_cast<std::byte*>(bytes.data()), {size}, at::kByte);
  tensor.view({-1}).view(at::kByte).copy_(source);
}

}  // namespace dtopp::ops

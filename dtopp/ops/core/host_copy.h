// Copies between host memory and a device, some of them without waiting for the device.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include <c10/core/Event.h>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Copies tensors of one device to the host asynchronously. CPU tensors are not copied, so the caller must not
// write to them afterwards.
class HostCopy {
 public:
  HostCopy() = default;
  explicit HostCopy(const std::vector<Tensor>& tensors);

  // Waits until all copies are complete, on any thread.
  const std::vector<Tensor>& get() const;

 protected:
  std::vector<Tensor> tensors_;
  std::optional<c10::Event> arrival_;
};

// Host buffers for repeated copies of the same tensors, all of one device.
class HostSnapshot : public HostCopy {
 public:
  // Allocates the buffers; those of a device's tensors are page-locked.
  explicit HostSnapshot(const std::vector<Tensor>& tensors);

  // Copies the tensors. Afterwards the caller may write to them, on a device in its current stream, whose
  // copies the host does not wait for.
  void take(const std::vector<Tensor>& tensors);
};

// Copies a host tensor to the device asynchronously. Returns the tensor itself if the device is the CPU.
Tensor to_device(const Tensor& host, const at::Device& device);

// Fills a contiguous tensor on any device. `bytes` must have exactly the tensor's size.
void copy_from_bytes(std::span<const std::byte> bytes, const Tensor& tensor);

inline constexpr int64_t kHostPieceBytes = int64_t{64} << 20;

// Passes the bytes of a contiguous tensor on any device to take(std::span<const std::byte>), in order, in
// pieces of at most `piece_bytes`. A piece must hold at least one element. Pieces of a device tensor are
// copied to the host first, to one pinned buffer: copies to pinned memory are several times as fast.
template <typename Take>
void copy_to_bytes(const Tensor& tensor, const Take& take, int64_t piece_bytes = kHostPieceBytes) {
  const int64_t piece = piece_bytes / static_cast<int64_t>(tensor.element_size());
  TORCH_CHECK(piece > 0, "copy_to_bytes: pieces of ", piece_bytes, " bytes are smaller than an element");
  Tensor pinned;
  if (!tensor.is_cpu())
    pinned =
        at::empty({std::min(piece, tensor.numel())}, tensor.options().device(at::kCPU).pinned_memory(true));
  for (const Tensor& part : tensor.view({-1}).split(piece)) {
    const Tensor host = pinned.defined() ? pinned.narrow(0, 0, part.numel()).copy_(part) : part;
    take(std::span(static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()));
  }
}

}  // namespace dtopp::ops

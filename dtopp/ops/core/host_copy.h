// Copies between host memory and a device, some of them without waiting for the device.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <c10/core/Event.h>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// Copies tensors of one device to the host asynchronously. CPU tensors are not copied, so the caller must not
// write to them afterwards.
class HostCopy {
 public:
  HostCopy() = default;
  explicit HostCopy(const std::vector<at::Tensor>& tensors);

  // Waits until all copies are complete.
  const std::vector<at::Tensor>& get() const;

 private:
  std::vector<at::Tensor> tensors_;
  std::optional<c10::Event> arrival_;
};

// Copies a host tensor to the device asynchronously. Returns the tensor itself if the device is the CPU.
at::Tensor to_device(const at::Tensor& host, const at::Device& device);

// Fills a contiguous tensor on any device. `bytes` must have exactly the tensor's size.
void copy_from_bytes(std::span<const std::byte> bytes, const at::Tensor& tensor);

inline constexpr int64_t kHostPieceBytes = int64_t{64} << 20;

// Passes the bytes of a contiguous tensor on any device to `take`, in order, in pieces of at most
// `piece_bytes`. A piece must hold at least one element. Pieces of a device tensor are copied to the host
// first.
void copy_to_bytes(const at::Tensor& tensor, const std::function<void(std::span<const std::byte>)>& take,
                   int64_t piece_bytes = kHostPieceBytes);

}  // namespace dtopp

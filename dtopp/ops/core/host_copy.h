// Copies between the host's memory and a device's. Where it says so, the host does not wait for work that the
// device has still to do.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <c10/core/Event.h>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// Tensors of one device on their way to the host, which goes on meanwhile. Tensors of a CPU are not copied,
// so that whoever hands them over must not write to them afterwards.
class HostCopy {
 public:
  HostCopy() = default;
  explicit HostCopy(const std::vector<at::Tensor>& tensors);

  // Waits until all have arrived.
  const std::vector<at::Tensor>& get() const;

 private:
  std::vector<at::Tensor> tensors_;
  std::optional<c10::Event> arrival_;
};

// Copies a tensor of the host to the device without waiting; the tensor itself where that is the CPU.
at::Tensor to_device(const at::Tensor& host, const at::Device& device);

// Fills a contiguous tensor of any device from its bytes, as many as it has.
void copy_from_bytes(std::span<const std::byte> bytes, const at::Tensor& tensor);

inline constexpr int64_t kHostPieceBytes = int64_t{64} << 20;

// Hands the bytes of a contiguous tensor of any device to `take`, in order, in pieces of at most
// `piece_bytes`, which must hold an element. Each piece is copied to the host first, unless the tensor is
// there already.
void copy_to_bytes(const at::Tensor& tensor, const std::function<void(std::span<const std::byte>)>& take,
                   int64_t piece_bytes = kHostPieceBytes);

}  // namespace dtopp

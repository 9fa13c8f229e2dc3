// Between the host's memory and a device's without making the host wait for what the device has still to do.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include <c10/core/Event.h>

#include "dtopp/ops/torch.h"

namespace dtopp {

// Copies of tensors of one device on their way to the host. Those of a CPU are there at once and are no
// copies: they must not be written to afterwards.
class HostCopy {
 public:
  HostCopy() = default;
  explicit HostCopy(const std::vector<at::Tensor>& tensors);

  // Waits until they are there.
  const std::vector<at::Tensor>& get() const;

 private:
  std::vector<at::Tensor> tensors_;
  std::optional<c10::Event> arrival_;
};

// A tensor of the host on `device`; itself where that is the CPU.
at::Tensor to_device(const at::Tensor& host, const at::Device& device);

// Fills a contiguous tensor of any device from its bytes, as many as it has.
void copy_from_bytes(std::span<const std::byte> bytes, const at::Tensor& tensor);

inline constexpr int64_t kHostPieceBytes = int64_t{64} << 20;

// Hands the bytes of a contiguous tensor of any device to `take`, in order, in pieces of at most
// `piece_bytes` (no less than an element): a device's are copied to the host one piece after another, a CPU's
// are no copies.
void copy_to_bytes(const at::Tensor& tensor, const std::function<void(std::span<const std::byte>)>& take,
                   int64_t piece_bytes = kHostPieceBytes);

}  // namespace dtopp

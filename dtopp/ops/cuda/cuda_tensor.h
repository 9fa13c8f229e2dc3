// Connects CUDA ops to torch: the current stream, and tensors as the pointers that kernels take.
#pragma once

#include "dtopp/ops/core/torch.h"
#include "dtopp/ops/cuda/cuda_types.h"

namespace dtopp::ops::cuda {

// Returns torch's current stream of the tensor's device. A c10::DeviceGuard must have made the device
// current.
Stream current_stream(const Tensor& tensor);

template <typename Number>
const Number* read(const Tensor& tensor) {
  return static_cast<const Number*>(tensor.const_data_ptr());
}

// Returns null if the tensor is undefined.
template <typename Number>
const Number* read_if(const Tensor& tensor) {
  return tensor.defined() ? read<Number>(tensor) : nullptr;
}

template <typename Number>
Number* write(const Tensor& tensor) {
  return static_cast<Number*>(tensor.mutable_data_ptr());
}

template <typename Number>
Number* write_if(const Tensor& tensor) {
  return tensor.defined() ? write<Number>(tensor) : nullptr;
}

inline void check_number_of_experts(const char* op, int64_t experts) {
  TORCH_CHECK(experts <= kMostExperts, op, ": expected at most ", kMostExperts,
              " experts on a CUDA device, got ", experts);
}

constexpr int64_t kAlignment = 16;  // bytes; required of the operands of matrix products

inline bool begins_aligned(const Tensor& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment == 0;
}

// Calls `body` with a value of the tensor's type: float or double.
template <typename Body>
void dispatch_real(const Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kDouble) return body(double{});
  body(float{});
}

// The same for float, double or Bfloat16.
template <typename Body>
void dispatch(const Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kBFloat16) return body(Bfloat16{});
  dispatch_real(tensor, body);
}

}  // namespace dtopp::ops::cuda

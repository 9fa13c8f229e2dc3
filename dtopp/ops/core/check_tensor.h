// Checks that a tensor argument of an operator fits the other arguments, and gives the dtype of its sums.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// Returns float64 for a float64 tensor, else float32.
inline at::ScalarType accumulator_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct Expected {
  at::ScalarType dtype;
  at::Device device;
};

// Throws c10::Error "<op>: expected <name> …" if the dtype, device or shape of `tensor` differs.
inline void check_tensor(const char* op, const char* name, const at::Tensor& tensor, const Expected& expected,
                         c10::SymIntArrayRef sizes) {
  TORCH_CHECK(tensor.scalar_type() == expected.dtype && tensor.device() == expected.device &&
                  tensor.sym_sizes() == sizes,
              op, ": expected ", name, " ", expected.dtype, " ", sizes, " on ", expected.device, ", got ",
              tensor.scalar_type(), " ", tensor.sym_sizes(), " on ", tensor.device());
}

}  // namespace dtopp::ops

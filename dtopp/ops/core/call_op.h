// Calls an operator by name through the PyTorch dispatcher, like torch.ops in Python. The dispatcher selects
// the kernel for the tensors' device. Checks that a tensor argument fits the other arguments, and gives the
// dtype of its sums.
#pragma once

#include <algorithm>

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// An operator's name as a template argument, so that each operator is looked up once.
template <size_t kSize>
struct OpName {
  char text[kSize];

  consteval OpName(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }  // NOLINT: implicit
};

// Example: call_op<"dtopp::route", decltype(route_meta)>(logits_TE, ...). `Signature` is the function type of
// the op's kernels.
template <OpName kName, typename Signature, typename... Arguments>
auto call_op(const Arguments&... arguments) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(kName.text, "").template typed<Signature>();
  return op.call(arguments...);
}

// Returns float64 for a float64 tensor, else float32.
inline at::ScalarType accumulator_type(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct Expected {
  at::ScalarType dtype;
  at::Device device;
};

// Throws c10::Error "<op>: expected <name> …" if the dtype, device or shape of `tensor` differs.
inline void check_tensor(const char* op, const char* name, const Tensor& tensor, const Expected& expected,
                         c10::SymIntArrayRef sizes) {
  TORCH_CHECK(tensor.scalar_type() == expected.dtype && tensor.device() == expected.device &&
                  tensor.sym_sizes() == sizes,
              op, ": expected ", name, " ", expected.dtype, " ", sizes, " on ", expected.device, ", got ",
              tensor.scalar_type(), " ", tensor.sym_sizes(), " on ", tensor.device());
}

}  // namespace dtopp::ops

// Calls an operator by name through the PyTorch dispatcher, like torch.ops in Python. The dispatcher selects
// the kernel for the tensors' device.
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

}  // namespace dtopp::ops

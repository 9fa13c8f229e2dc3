// Calls an operator as torch.ops does: by its name, through the dispatcher, which chooses the kernel of its
// tensors' device.
#pragma once

#include <algorithm>

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// A name as a template argument, so that each operator is looked up once.
template <size_t kSize>
struct OpName {
  char text[kSize];

  consteval OpName(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }  // NOLINT: implicit
};

// call_op<"dtopp::route", decltype(route_meta)>(logits_TE, ...). Signature: the function type of its kernels.
template <OpName kName, typename Signature, typename... Arguments>
auto call_op(const Arguments&... arguments) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(kName.text, "").template typed<Signature>();
  return op.call(arguments...);
}

}  // namespace dtopp

// Calls the CUDA side of an op with CPU tensors; cuda_on_host runs its kernels.
#pragma once

#include "tests/ops/cuda/cuda_on_host.h"
#include "tests/ops/cuda/poisoned_memory.h"

namespace dtopp::ops {

template <typename Signature, typename... Arguments>
auto call_cuda(const char* op, const Arguments&... arguments) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(op, "").typed<Signature>().redispatch(
      c10::DispatchKeySet(c10::DispatchKey::CUDA), arguments...);
}

}  // namespace dtopp::ops

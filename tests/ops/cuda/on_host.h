// Calls the CUDA side of an op, its kernels run by cuda_on_host, with tensors of the CPU.
#pragma once

#include "dtopp/ops/torch.h"
#include "tests/ops/cuda/cuda_on_host.h"

namespace dtopp {

template <typename Signature, typename... Arguments>
auto call_cuda(const char* op, const Arguments&... arguments) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(op, "").typed<Signature>().redispatch(
      c10::DispatchKeySet(c10::DispatchKey::CUDA), arguments...);
}

// While it lives, memory that torch allocates holds NaNs (the largest numbers where they are integers), so
// that what is read before it was written shows.
class PoisonedMemory {
 public:
  PoisonedMemory() { set(true); }
  ~PoisonedMemory() { set(false); }
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;

 private:
  static void set(bool on) {
    at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(on);
  }
};

}  // namespace dtopp

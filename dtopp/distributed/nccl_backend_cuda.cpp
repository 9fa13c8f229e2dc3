// Registers the operator that creates an NCCL backend, in the library that links torch's CUDA part.
// process_groups.cpp finds it by name.
#define USE_C10D_NCCL

#include <chrono>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "dtopp/ops/core/torch.h"

namespace dtopp::distributed {
namespace {

using c10d::ProcessGroupNCCL;

c10::IValue nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank, int64_t size,
                         int64_t device, int64_t timeout_ms) {
  auto options = ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(timeout_ms);
  auto backend = c10::make_intrusive<ProcessGroupNCCL>(store, static_cast<int>(rank), static_cast<int>(size),
                                                       std::move(options));
  // Connect now, not at the first collective: a failure here is a failure to connect.
  backend->eagerConnectSingleDevice(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
  return c10::IValue::make_capsule(std::move(backend));
}

// A boxed function, because operators do not accept either class as an argument type.
void nccl_backend_of_stack(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const std::vector<c10::IValue> arguments = torch::jit::pop(*stack, 5);
  const auto store = c10::static_intrusive_pointer_cast<c10d::Store>(arguments[0].toCapsule());
  stack->push_back(nccl_backend(store, arguments[1].toInt(), arguments[2].toInt(), arguments[3].toInt(),
                                arguments[4].toInt()));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dtopp, m) {
  m.def("nccl_backend(Any store, int rank, int size, int device, int timeout_ms) -> Any",
        torch::CppFunction::makeFromBoxedFunction<&nccl_backend_of_stack>());
}

}  // namespace dtopp::distributed

#include "dtopp/ops/optimizer/squared_norms_cuda.h"

#include "dtopp/ops/cuda/cuda_tensor.h"
#include "dtopp/ops/optimizer/squared_norms.h"

namespace dtopp::ops {
namespace {

Tensor squared_norms_cuda(const Tensor& values, const Tensor& offsets) {
  check_squared_norms(values, offsets);
  const c10::DeviceGuard guard(values.device());
  Tensor squares = at::empty({offsets.numel() - 1}, values.options().dtype(at::kDouble));
  cuda::squared_norms(cuda::read<float>(values), cuda::read<int64_t>(offsets), squares.numel(),
                      cuda::write<double>(squares), cuda::current_stream(values));
  return squares;
}

}  // namespace

TORCH_LIBRARY_IMPL(dtopp, CUDA, m) { m.impl("squared_norms", squared_norms_cuda); }

}  // namespace dtopp::ops

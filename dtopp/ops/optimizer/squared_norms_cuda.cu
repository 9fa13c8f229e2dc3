// One thread block per part. Neighboring threads read neighboring numbers.
#include "dtopp/ops/cuda/cuda_kernel.h"
#include "dtopp/ops/optimizer/squared_norms_cuda.h"

namespace dtopp::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    squared_norms_kernel(const float* values, const int64_t* offsets, double* squares) {
  auto* sums = reinterpret_cast<double*>(shared_memory());  // one sum per warp
  const int64_t end = offsets[blockIdx.x + 1];
  double sum = 0;
#pragma unroll 8
  for (int64_t i = offsets[blockIdx.x] + threadIdx.x; i < end; i += kThreads) {
    const double value = values[i];
    sum += value * value;
  }
  sum = block_sum(sum, sums);
  if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

}  // namespace

void squared_norms(const float* values, const int64_t* offsets, int64_t parts, double* squares,
                   Stream stream) {
  if (parts == 0) return;
  launch({"squared_norms", stream, parts, kThreads, kThreads / kWarp * sizeof(double)}, squared_norms_kernel,
         values, offsets, squares);
}

}  // namespace dtopp::ops::cuda

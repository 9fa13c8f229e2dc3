#include <c10/cuda/CUDAStream.h>

#include "dtopp/ops/cuda_tensor.h"

namespace dtopp::cuda {

Stream current_stream(const at::Tensor& tensor) {
  return c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream();
}

}  // namespace dtopp::cuda

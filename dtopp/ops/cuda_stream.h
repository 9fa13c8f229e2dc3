// The type of a CUDA stream, for headers that neither torch nor the CUDA toolkit is included in.
#pragma once

struct CUstream_st;

namespace dtopp::cuda {

using Stream = CUstream_st*;  // the toolkit's cudaStream_t

}  // namespace dtopp::cuda

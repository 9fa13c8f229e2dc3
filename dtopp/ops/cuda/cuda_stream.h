// The type of a CUDA stream, for headers that include neither torch nor the CUDA toolkit.
#pragma once

struct CUstream_st;

namespace dtopp::cuda {

using Stream = CUstream_st*;  // the toolkit's cudaStream_t

}  // namespace dtopp::cuda

// Memory in pages of 2 MiB, for weights of which each token reads a large part.
//
// A processor looks up the address of each page and does not prefetch beyond its end. From pages of 4 KiB,
// one thread of a Zen 4 reads 19 GB/s; from large pages, 34 GB/s.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::ops {

// at::empty. On a CPU, a tensor of a large page or more lies in large pages as far as Linux has them free.
Tensor empty_in_large_pages(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace dtopp::ops

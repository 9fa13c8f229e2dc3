// The machine's measured matrix rate: what MFU is measured against.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp {

// FLOP/s of at::mm in the given type, on the given device, with the current number of threads (a quarter of a
// second): on 4096 x 768 x 768, or as many times larger as a product needs to keep the device busy. bf16 on a
// device without bf16 instructions is rated as fp32, which is what computes it there.
double measure_matrix_rate(const at::TensorOptions& compute);

}  // namespace dtopp

// The machine's measured matrix rate: what MFU is measured against.
#pragma once

#include "dtopp/ops/torch.h"

namespace dtopp {

// FLOP/s of at::mm on 4096 x 768 x 768 in the given type with the current number of threads (a quarter of a
// second). bf16 on a machine without bf16 instructions is rated as fp32, which is what computes it there.
double measure_matrix_rate(at::ScalarType type);

}  // namespace dtopp

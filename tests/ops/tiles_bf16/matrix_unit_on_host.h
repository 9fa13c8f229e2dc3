// A bfloat16 matrix unit that every machine has: the functions of MatrixUnit
// (dtopp/ops/gemm/cpu_kernel.h) as plain loops. A test program links them in place of those of
// libdtopp_ops.so, so the operators take the code path of machines with AMX.
#pragma once

#include <cstdint>

namespace dtopp::ops::matrix_unit_on_host {

// The number of products so far.
int64_t products();

// The number of threads that have multiplied and not yet released their tile registers.
int64_t threads_holding_tiles();

}  // namespace dtopp::ops::matrix_unit_on_host

// A matrix unit for bfloat16 that every machine has: the functions of MatrixUnit
// (dtopp/ops/gemm/matrix_tiles_bf16.h) as plain loops, linked into a test program in place of
// libdtopp_ops.so's own. The operators then take the way they take on machines with AMX.
#pragma once

#include <cstdint>

namespace dtopp::matrix_unit_on_host {

// Products so far.
int64_t products();

// Threads that have multiplied and not released their tile registers since.
int64_t threads_holding_tiles();

}  // namespace dtopp::matrix_unit_on_host

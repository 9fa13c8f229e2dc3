// Measures the machine's matrix rate, from which studies forecast their hours, and a CPU's memory rate.
#pragma once

#include "dtopp/ops/core/torch.h"

namespace dtopp::device {

// Returns the FLOP/s of at::mm in the given type on the given device, with the current number of threads.
//
// It takes at most a quarter of a second and multiplies 4096 x 768 x 768, or larger matrices if the device
// needs them to be busy. bf16 on a device without bf16 instructions is measured in fp32, in which that device
// computes it.
double measure_matrix_rate(const at::TensorOptions& compute);

// Returns the bytes per second that a CPU reads and writes while it copies 128 MiB, with the current number
// of threads. It takes at most a quarter of a second.
double measure_memory_rate();

}  // namespace dtopp::device

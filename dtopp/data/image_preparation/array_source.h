// Arrays of numbers in .npy files.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dtopp/base/safetensors.h"

namespace dtopp {

// The array that a whole .npy file holds, as float32, float16 or uint8; `what` names it in errors. DataError
// for another type, Fortran's order, or more or fewer bytes than its shape has.
TensorView read_npy_array(std::span<const std::byte> file, const std::string& what);

}  // namespace dtopp

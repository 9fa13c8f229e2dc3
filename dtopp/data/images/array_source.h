// Reads arrays of numbers from .npy files.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dtopp/base/safetensors.h"

namespace dtopp::data {
// Returns the array in `file`, the bytes of a whole .npy file: float32, float16 or uint8. `what` names the
// file in errors. Throws DataError if the array has another type, is in Fortran order, or if its bytes do not
// match its shape.
TensorView read_npy_array(std::span<const std::byte> file, const std::string& what);

}  // namespace dtopp::data

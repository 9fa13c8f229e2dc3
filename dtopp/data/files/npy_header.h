// Reads the header of a NumPy .npy file, format versions 1 to 3 (numpy.lib.format).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "dtopp/base/byte_reader.h"

namespace dtopp {

// The values of the header's dictionary, as Python writes them. The views refer to the reader's bytes.
struct NpyHeader {
  std::string_view descr;          // "'<f4'"
  std::string_view fortran_order;  // "False"
  std::string_view shape;          // "(3, 4": without the closing parenthesis
};

// Returns true if `bytes` begin with the magic string of the .npy format.
bool begins_as_npy(std::span<const std::byte> bytes);

// Reads the header and leaves `reader` at the array's first byte. Throws DataError if the header is
// truncated, has another version, is larger than 64 KiB or lacks one of the three values. Precondition: the
// bytes begin as .npy.
NpyHeader read_npy_header(ByteReader& reader);

}  // namespace dtopp

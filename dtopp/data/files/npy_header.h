// The header of the .npy format: numpy.lib.format, versions 1 to 3.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "dtopp/base/byte_reader.h"

namespace dtopp {

// What the header's dictionary says, as Python writes it; refers to the reader's bytes.
struct NpyHeader {
  std::string_view descr;          // "'<f4'"
  std::string_view fortran_order;  // "False"
  std::string_view shape;          // "(3, 4": without the closing bracket
};

bool begins_as_npy(std::span<const std::byte> bytes);

// Leaves `reader` at the array's first byte. DataError where the header is cut, of another version, larger
// than 64 KiB or lacks one of the three.
NpyHeader read_npy_header(ByteReader& reader);

}  // namespace dtopp

// Reads the header of a NumPy .npy file, format versions 1 to 3 (numpy.lib.format).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dtopp/base/byte_reader.h"

namespace dtopp::data {

// The values of the header's dictionary. The views refer to the reader's bytes.
struct NpyHeader {
  std::string_view descr;  // as Python writes it: "'<f4'"
  bool fortran_order = false;
  std::vector<int64_t> shape;  // at most 8 sizes
};

// Returns true if `bytes` begin with the magic string of the .npy format.
bool begins_as_npy(std::span<const std::byte> bytes);

// Reads the header and leaves `reader` at the array's first byte. Throws DataError if the header is
// truncated, has another version, is larger than 64 KiB, lacks one of the three values or has no valid
// shape. Precondition: the bytes begin as .npy.
NpyHeader read_npy_header(ByteReader& reader);

// Returns the array's bytes, which follow the header. Throws DataError unless they fill the rest of the file.
std::span<const std::byte> read_npy_data(ByteReader& reader, const std::vector<int64_t>& shape,
                                         uint64_t element_bytes);

}  // namespace dtopp::data

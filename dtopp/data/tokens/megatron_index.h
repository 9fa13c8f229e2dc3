// The .idx file of Megatron's IndexedDataset, version 1, little-endian:
//   "MMIDIDX\0\0"  uint64 version = 1  uint8 type of the ids  uint64 sequences n  uint64 document bounds d
//   int32[n] lengths in ids  int64[n] where each begins in the .bin, in bytes  int64[d] bounds: 0 … n
#pragma once

#include <cstdint>
#include <filesystem>

#include "dtopp/base/files.h"
#include "dtopp/data/tokens/token_array.h"

namespace dtopp {

// Writes the index of documents of one sequence each, one after another: `lengths` holds
// an int32 of each, `type` is uint16 or int32. Returns the index's checksum.
std::string write_megatron_index(const std::filesystem::path& path, TokenType type,
                                 const MappedFile& lengths);

}  // namespace dtopp

// Reads and writes the .idx file of Megatron's IndexedDataset.
//
// The layout of version 1, little-endian:
//
//   "MMIDIDX\0\0"
//   uint64    1, the version
//   uint8     type of the ids
//   uint64    n: number of sequences
//   uint64    d: number of document bounds
//   int32[n]  lengths in ids
//   int64[n]  byte offsets in the .bin file
//   int64[d]  document bounds, 0 … n
#pragma once

#include <cstdint>
#include <filesystem>

#include "dtopp/base/files.h"
#include "dtopp/data/tokens/token_array.h"

namespace dtopp::data {

// The tokens of a Megatron .bin file and the number of documents in its .idx file.
struct TokenPair {
  TokenArray tokens;
  uint64_t documents;
};

// Opens a .bin file and its .idx file. Throws DataError if the index is damaged or does not match the .bin
// file.
TokenPair open_megatron(const std::filesystem::path& bin, const std::filesystem::path& idx);

// Writes the index of consecutive documents, each of which is one sequence. `lengths` holds one int32 per
// document; `type` is uint16 or int32. Returns the checksum of the index.
std::string write_megatron_index(const std::filesystem::path& path, TokenType type,
                                 const MappedFile& lengths);

}  // namespace dtopp::data

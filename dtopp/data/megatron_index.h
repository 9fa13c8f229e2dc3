// Megatron-Core's .idx: which tokens of the .bin beside it make up each sequence and document.
//
//   "MMIDIDX\0\0"  version u64 = 1  dtype code u8  sequences u64  document boundaries u64
//   lengths i32[sequences]  byte offsets i64[sequences]  first sequence of each document i64[boundaries]
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace dtopp {

struct MegatronIndex {
  int token_bytes = 2;  // 2: uint16 (code 8), 4: int32 (code 4)
  uint64_t sequences = 0;
  uint64_t documents = 0;
  uint64_t tokens = 0;
};

// Checks every field: the sequences lie end to end from byte 0. DataError names `what`, the byte and the
// cause.
MegatronIndex parse_megatron_index(std::span<const std::byte> bytes, const std::string& what);

// The .idx of documents of one sequence each.
std::string format_megatron_index(const std::vector<int32_t>& lengths, int token_bytes);

}  // namespace dtopp

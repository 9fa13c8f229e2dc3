// Token ids in .npy files: headerless arrays (as OLMo writes them), or NumPy's own format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace dtopp {

struct NpyTokens {
  std::span<const std::byte> ids;
  int token_bytes;  // 2: uint16, 4: uint32, 8: int64
};

// Without NumPy's magic the whole file is ids: uint16 where vocab_size fits it (or is 0), else uint32. With
// it: a one-dimensional little-endian array of uint16, uint32, int32 or int64. DataError names `what`, the
// byte and the cause.
NpyTokens parse_npy_tokens(std::span<const std::byte> bytes, const std::string& what, int64_t vocab_size);

}  // namespace dtopp

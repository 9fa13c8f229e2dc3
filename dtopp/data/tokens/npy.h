// Opens token ids in NumPy's format.
#pragma once

#include <cstdint>
#include <filesystem>

#include "dtopp/data/tokens/token_array.h"

namespace dtopp::data {

// Opens a .npy file with NumPy's header (one dimension, integers, little-endian) or without a header. OLMo
// writes raw ids without a header: uint16, or uint32 if `vocab_size` exceeds 65536. Throws DataError if the
// header is not supported or the file is truncated.
TokenArray open_npy(const std::filesystem::path& path, int64_t vocab_size);

}  // namespace dtopp::data

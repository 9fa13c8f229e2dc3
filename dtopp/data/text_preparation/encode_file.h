// A text file as one stream of token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "dtopp/data/tokenizer/tokenizer.h"

namespace dtopp {

// The ids of every document (text_reader.h), each closed by <|endoftext|>.
// DataError where the file cannot be read.
std::vector<int64_t> encode_file(const std::filesystem::path& path, const Tokenizer& tokenizer);

}  // namespace dtopp

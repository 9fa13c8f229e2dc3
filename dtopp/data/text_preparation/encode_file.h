// Encodes a text file as one stream of token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "dtopp/data/tokenizer/tokenizer.h"

namespace dtopp::data {

// Returns the ids of all documents of the file (text_reader.h); <|endoftext|> follows each document. Throws
// DataError if the file cannot be read, StoppedEarly at a stop within a StopScope.
std::vector<int64_t> encode_file(const std::filesystem::path& path, const Tokenizer& tokenizer);

}  // namespace dtopp::data

// Describes a tokenizer to llama.cpp.
#pragma once

#include <cstdint>

#include "dtopp/convert/gguf.h"
#include "dtopp/data/text/tokenizer.h"

namespace dtopp::convert {

// Adds the tokens, their types, the merges and the pre-tokenizer's name. Ids up to `vocab_size` that the
// tokenizer does not have become unused tokens. Throws UsageError, with `file` in front, if llama.cpp has no
// tokenizer of this kind.
void add_tokenizer(GgufMetadata& metadata, const data::Tokenizer& tokenizer, int64_t vocab_size,
                   const std::string& file);

}  // namespace dtopp::convert

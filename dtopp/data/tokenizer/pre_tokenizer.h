// The GPT-2 pattern, as a scanner:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// It covers every text: words laid end to end are the text again.
#pragma once

#include <cstddef>
#include <string_view>

#include "dtopp/data/text/unicode.h"

namespace dtopp {

// The end of the word that begins at `begin` (< text.size()); `text` is valid UTF-8.
size_t find_word_end(std::string_view text, size_t begin, const CodePointClasses& classes);

}  // namespace dtopp

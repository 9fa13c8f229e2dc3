// Splits text into words by the GPT-2 pattern, with a scanner instead of a regular expression. The words
// cover the text: their concatenation is the text again.
#pragma once

#include <cstddef>
#include <string_view>

#include "dtopp/data/text/unicode.h"

namespace dtopp::data {
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Returns the end of the word that begins at `begin` (< text.size()). Precondition: `text` is valid UTF-8.
size_t find_word_end(std::string_view text, size_t begin, const CodePointClasses& classes);

}  // namespace dtopp::data

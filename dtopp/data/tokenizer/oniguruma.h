// Rewrites a regular expression of Oniguruma, which Hugging Face `tokenizers` uses, for PCRE2.
//
// The rewritten pattern matches the same text, apart from characters that the Unicode version of one of the
// two libraries lacks. What PCRE2 matches in another way is rewritten, or refused if that is not exact.
#pragma once

#include <string>
#include <string_view>

namespace dtopp::data {

// Returns a pattern for the options UTF, UCP and MULTILINE. Throws DataError, naming the construct and its
// byte in `pattern` (valid UTF-8), if it is not supported.
std::string oniguruma_to_pcre2(std::string_view pattern);

}  // namespace dtopp::data

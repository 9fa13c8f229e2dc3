// Converts JSON text to values and back.
//
// Only json.cpp instantiates nlohmann's parser and printer. Every other file that called them would compile
// ten seconds longer or more.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace dtopp {

// Copying, comparing and printing a value recurse, so the nesting of what was read is limited.
inline constexpr int kMaxJsonDepth = 100;

// Parses the content of `location` (a file or a line of a file). Throws DataError, naming the location, if
// the text is not JSON or nests deeper than kMaxJsonDepth. JsonFields reads the members of an object.
nlohmann::json parse_json(std::string_view text, const std::string& location);

// Prints on one line, or with `indent` spaces per level. Bytes that are not UTF-8 become U+FFFD.
std::string dump_json(const nlohmann::ordered_json& value, int indent = -1);

// Converts to and from MessagePack, which keeps every bit of every number and string. unpack_json accepts
// only output of pack_json.
std::string pack_json(const nlohmann::json& value);
nlohmann::json unpack_json(std::string_view bytes);

// The integer that a value holds. Throws json::type_error, as get() does for another type, if it is a
// fraction or lies beyond int64; get<int64_t>() would change these.
int64_t integer_of(const nlohmann::json& value);

// The text as a JSON string. With `ascii`, characters outside ASCII are escaped.
std::string quote_json(std::string_view text, bool ascii = false);

}  // namespace dtopp

// JSON text to values and back. nlohmann's parser and printer are compiled in json.cpp alone: in every other
// file that calls them they would cost ten seconds and more of compile time.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace dtopp {

// The value; is_discarded() where the text is not JSON. JsonFields reads objects member by member.
nlohmann::json parse_json(std::string_view text);

// On one line, or with `indent` spaces a level. Bytes that are not UTF-8 become U+FFFD.
std::string dump_json(const nlohmann::ordered_json& value, int indent = -1);

// As MessagePack, which keeps every bit of every number and string. unpack_json is for what pack_json has
// made.
std::string pack_json(const nlohmann::json& value);
nlohmann::json unpack_json(std::string_view bytes);

// The text as a JSON string; with `ascii`, whatever else is escaped.
std::string quote_json(std::string_view text, bool ascii = false);

}  // namespace dtopp

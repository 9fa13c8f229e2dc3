#include "dtopp/base/json.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"

namespace dtopp {
namespace {

using nlohmann::json;

// Counts brackets outside strings. The count is exact up to the first error in the text, where parsing ends.
bool is_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\')
      ++i;
    else if (c == '"')
      in_string = !in_string;
    else if (!in_string && (c == '[' || c == '{') && ++depth > kMaxJsonDepth)
      return true;
    else if (!in_string && (c == ']' || c == '}'))
      --depth;
  }
  return false;
}

}  // namespace

json parse_json(std::string_view text, const std::string& location) {
  if (is_too_deep(text))
    throw DataError(location + ": JSON nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
  // nlohmann treats a NUL as the end of its input.
  json value(json::value_t::discarded);
  if (text.find('\0') == text.npos) value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) throw DataError(location + ": invalid JSON");
  return value;
}

std::string dump_json(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

std::string pack_json(const json& value) {
  std::string bytes;
  json::to_msgpack(value, bytes);
  return bytes;
}

json unpack_json(std::string_view bytes) { return json::from_msgpack(bytes); }

int64_t integer_of(const json& value) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && !std::in_range<int64_t>(value.get<uint64_t>())))
    throw json::type_error::create(302, "type must be an integer of 64 bits, but is " + dump_json(value),
                                   &value);
  return value.get<int64_t>();
}

std::string quote_json(std::string_view text, bool ascii) {
  return nlohmann::ordered_json(text).dump(-1, ' ', ascii, json::error_handler_t::replace);
}

}  // namespace dtopp

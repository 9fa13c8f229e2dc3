#include "dtopp/base/json.h"

#include <nlohmann/json.hpp>

namespace dtopp {

using nlohmann::json;

json parse_json(std::string_view text) {
  // nlohmann treats a NUL as the end of its input.
  if (text.find('\0') != text.npos) return json(json::value_t::discarded);
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
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

std::string quote_json(std::string_view text, bool ascii) {
  return nlohmann::ordered_json(text).dump(-1, ' ', ascii, json::error_handler_t::replace);
}

}  // namespace dtopp

// Lets JsonFields' reader read values of simdjson, which parses a tokenizer.json in a tenth of nlohmann's
// time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <simdjson.h>

#include "dtopp/base/json.h"

namespace dtopp {
template <>
inline constexpr const char* kExpected<simdjson::dom::array> = "must be an array";
template <>
inline constexpr const char* kExpected<simdjson::dom::object> = "must be an object of ids";

}  // namespace dtopp

namespace dtopp::data {

// The parser owns the values, so it must outlive them.
struct SimdJson {
  using Value = simdjson::dom::element;

  static std::optional<Value> find(const Value& object, const std::string& key) {
    Value value;
    if (object.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
    return value;
  }
  static bool is_object(const Value& value) { return value.is_object(); }
  template <class T>
  static bool read(const Value& value, T& result) {
    return value.get(result) == simdjson::SUCCESS;
  }
  static bool read(const Value& value, std::string& result) {
    std::string_view text;
    if (!read(value, text)) return false;
    result = text;
    return true;
  }
};

using TokenizerFields = BasicJsonFields<SimdJson>;

// Calls visit(part) for a single part, or for each part of a (nested) Sequence that lists its parts under
// `list`.
template <class Visit>
void visit_parts(const TokenizerFields& object, const char* list, const Visit& visit) {
  if (object.text("type") != "Sequence") return visit(object);
  size_t index = 0;
  for (const SimdJson::Value part : object.get<simdjson::dom::array>(list))
    visit_parts(object.part(part, TokenizerFields::at(list, index++)), list, visit);
}

}  // namespace dtopp::data

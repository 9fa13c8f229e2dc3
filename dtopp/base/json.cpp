#include "dtopp/base/json.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/format.h"

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

// get<int64_t> would wrap an unsigned value beyond int64 around.
bool is_int64(const json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() || std::in_range<int64_t>(value.get<uint64_t>()));
}

}  // namespace

json parse_json(std::string_view text, const std::string& location) {
  if (is_too_deep(text)) throw DataError(location, ": JSON nested deeper than ", kMaxJsonDepth, " levels");
  // nlohmann treats a NUL as the end of its input.
  json value(json::value_t::discarded);
  if (text.find('\0') == text.npos) value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) throw DataError(location, ": invalid JSON");
  return value;
}

std::string dump_json(const ordered_json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

std::string pack_json(const json& value) {
  std::string bytes;
  json::to_msgpack(value, bytes);
  return bytes;
}

json unpack_json(std::string_view bytes) { return json::from_msgpack(bytes); }

int64_t integer_of(const json& value) {
  if (!is_int64(value))
    throw json::type_error::create(302, "type must be an integer of 64 bits, but is " + dump_json(value),
                                   &value);
  return value.get<int64_t>();
}

std::vector<double> numbers_of(const json& array) {
  std::vector<double> numbers;
  for (const json& value : array)
    numbers.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
  return numbers;
}

ordered_json number_json(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

std::string quote_json(std::string_view text, bool ascii) {
  return ordered_json(text).dump(-1, ' ', ascii, json::error_handler_t::replace);
}

std::string expected_range(int64_t lowest, int64_t highest) {
  std::string text = kExpected<int64_t>;
  if (highest < std::numeric_limits<int64_t>::max())
    text += " from " + std::to_string(lowest) + " to " + std::to_string(highest);
  else if (lowest > std::numeric_limits<int64_t>::min())
    text += " of at least " + std::to_string(lowest);
  return text;
}

std::string expected_range(double lowest, double highest) {
  return format("must be a number from %g to %g", lowest, highest);
}

JsonTree::Value JsonTree::parse(std::string_view text, const std::string& place) {
  return std::make_shared<const json>(parse_json(text, place));
}

std::optional<JsonTree::Value> JsonTree::find(const Value& object, const std::string& key) {
  const auto found = object->find(key);
  if (found == object->end() || found->is_null()) return std::nullopt;
  return Value(object, &*found);
}

std::vector<std::string> JsonTree::keys(const Value& object) {
  std::vector<std::string> keys;
  for (auto it = object->begin(); it != object->end(); ++it) keys.push_back(it.key());
  return keys;
}

bool JsonTree::is_object(const Value& value) { return value->is_object(); }

bool JsonTree::read(const Value& value, bool& result) {
  if (value->is_boolean()) result = value->get<bool>();
  return value->is_boolean();
}

bool JsonTree::read(const Value& value, int64_t& result) {
  if (is_int64(*value)) result = value->get<int64_t>();
  return is_int64(*value);
}

bool JsonTree::read(const Value& value, double& result) {
  if (value->is_number()) result = value->get<double>();
  return value->is_number();
}

bool JsonTree::read(const Value& value, std::string& result) {
  if (value->is_string()) result = value->get_ref<const std::string&>();
  return value->is_string();
}

bool JsonTree::read(const Value& value, std::vector<Value>& result) {
  if (value->is_array())
    for (const json& item : *value) result.emplace_back(value, &item);
  return value->is_array();
}

std::string JsonTree::dump(const Value& value) { return dump_json(*value); }

}  // namespace dtopp

#include "dtopp/base/json_fields.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/format.h"
#include "dtopp/base/json.h"

namespace dtopp {

using nlohmann::json;

std::string expected_range(int64_t lowest, int64_t highest) {
  std::string text = expected<int64_t>();
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
  // get<int64_t> would wrap an unsigned value beyond int64 around.
  const bool fits = value->is_number_unsigned() ? std::in_range<int64_t>(value->get<uint64_t>())
                                                : value->is_number_integer();
  if (fits) result = value->get<int64_t>();
  return fits;
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

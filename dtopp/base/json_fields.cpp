#include "dtopp/base/json_fields.h"

#include <span>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"

namespace dtopp {
namespace {

using nlohmann::json;

std::string describe_range(int64_t lowest, int64_t highest) {
  std::string text = "must be an integer";
  if (highest < std::numeric_limits<int64_t>::max())
    text += " from " + std::to_string(lowest) + " to " + std::to_string(highest);
  else if (lowest > std::numeric_limits<int64_t>::min())
    text += " of at least " + std::to_string(lowest);
  return text;
}

}  // namespace

JsonFields::JsonFields(std::string_view text, std::string location)
    : object_(std::make_shared<const json>(parse_json(text, location))), location_(std::move(location)) {
  if (!object_->is_object()) throw DataError(location_ + ": must be a JSON object");
}

JsonFields::JsonFields(std::shared_ptr<const json> object, std::string location)
    : object_(std::move(object)), location_(std::move(location)) {
  if (!object_->is_object()) throw DataError(location_ + ": must be a JSON object");
}

void JsonFields::fail(const std::string& key, const std::string& cause) const {
  throw DataError(location_ + ": " + key + ": " + cause);
}

bool JsonFields::has(const std::string& key) const { return object_->contains(key); }

bool JsonFields::is_array(const std::string& key) const { return member(key).is_array(); }

std::vector<std::string> JsonFields::keys() const {
  std::vector<std::string> keys;
  for (auto it = object_->begin(); it != object_->end(); ++it) keys.push_back(it.key());
  return keys;
}

const json& JsonFields::member(const std::string& key) const {
  const auto found = object_->find(key);
  if (found == object_->end()) fail(key, "is missing");
  return *found;
}

std::string JsonFields::text(const std::string& key) const {
  const json& value = member(key);
  if (!value.is_string()) fail(key, "must be a string");
  return value.get_ref<const std::string&>();
}

std::vector<std::string> JsonFields::texts(const std::string& key) const {
  const json& array = member(key);
  if (!array.is_array()) fail(key, "must be an array of strings");
  std::vector<std::string> texts;
  for (const json& value : array) {
    if (!value.is_string()) fail(key, "must be an array of strings");
    texts.push_back(value.get_ref<const std::string&>());
  }
  return texts;
}

int64_t JsonFields::integer(const std::string& key, int64_t lowest, int64_t highest) const {
  const json& value = member(key);
  // get<int64_t> would wrap an unsigned value beyond int64 around.
  const bool fits =
      value.is_number_unsigned() ? std::in_range<int64_t>(value.get<uint64_t>()) : value.is_number_integer();
  if (!fits || value.get<int64_t>() < lowest || value.get<int64_t>() > highest)
    fail(key, describe_range(lowest, highest));
  return value.get<int64_t>();
}

std::vector<double> JsonFields::numbers(const std::string& key) const {
  const json& value = member(key);
  const std::span<const json> values =
      value.is_array() ? std::span(value.get_ref<const json::array_t&>()) : std::span(&value, 1);
  std::vector<double> numbers;
  for (const json& number : values) {
    if (!number.is_number()) break;
    numbers.push_back(number.get<double>());
  }
  if (numbers.empty() || numbers.size() < values.size())
    fail(key, "must be a number or a list of numbers, at least one");
  return numbers;
}

JsonFields JsonFields::part(const json& value, const std::string& key) const {
  return {std::shared_ptr<const json>(object_, &value), location_ + ": " + key};
}

JsonFields JsonFields::object(const std::string& key) const { return part(member(key), key); }

std::vector<JsonFields> JsonFields::objects(const std::string& key) const {
  const json& array = member(key);
  if (!array.is_array()) fail(key, "must be an array of objects");
  std::vector<JsonFields> objects;
  for (const json& value : array) objects.push_back(part(value, key));
  return objects;
}

std::string JsonFields::dump() const { return dump_json(*object_); }

}  // namespace dtopp

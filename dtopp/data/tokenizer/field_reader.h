// Reads the fields of a JSON file whose errors name the file and the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <simdjson.h>

#include "dtopp/base/errors.h"

namespace dtopp::data {

using simdjson::dom::element;

// Reads the fields of one file. Every error names the file and the field.
class FieldReader {
 public:
  explicit FieldReader(const std::string& file) : file_(file) {}

  [[noreturn]] void fail(const std::string& field, const std::string& cause) const {
    throw DataError(file_ + ": " + field + ": " + cause);
  }

  // Returns the field, or nullopt if it is missing or null.
  std::optional<element> find(const element& object, const char* key) const {
    element value;
    if (object.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
    return value;
  }

  template <class T>
  T get(const element& value, const std::string& field, const char* expected) const {
    T result;
    if (value.get(result) != simdjson::SUCCESS) fail(field, std::string("must be ") + expected);
    return result;
  }

  std::string text(const element& value, const std::string& field) const {
    return std::string(get<std::string_view>(value, field, "a string"));
  }

  // Returns a boolean field. A missing field yields `fallback`; without a fallback the field is required.
  bool flag(const element& object, const std::string& field, const char* key,
            std::optional<bool> fallback = std::nullopt) const {
    const auto value = find(object, key);
    const std::string path = field + "." + key;
    if (value) return get<bool>(*value, path, "true or false");
    if (!fallback) fail(path, "is missing");
    return *fallback;
  }

  uint64_t count(const element& object, const std::string& field, const char* key) const {
    const auto value = find(object, key);
    if (!value) fail(field + "." + key, "is missing");
    return get<uint64_t>(*value, field + "." + key, "a whole number");
  }

  std::string type(const element& object, const std::string& field) const {
    if (!object.is_object()) fail(field, "must be an object");
    const auto value = find(object, "type");
    if (!value) fail(field + ".type", "is missing");
    return text(*value, field + ".type");
  }

 private:
  const std::string& file_;
};

// Calls visit(part, field) for a single part, or for each part of a (nested) Sequence that lists its parts
// under `list`.
template <class Visit>
void visit_parts(const FieldReader& read, const element& object, const std::string& field, const char* list,
                 const Visit& visit) {
  if (read.type(object, field) != "Sequence") return visit(object, field);
  const auto parts = read.find(object, list);
  if (!parts) read.fail(field + "." + list, "is missing");
  size_t index = 0;
  for (const element part : read.get<simdjson::dom::array>(*parts, field + "." + list, "an array")) {
    visit_parts(read, part, field + "." + list + "[" + std::to_string(index++) + "]", list, visit);
  }
}

}  // namespace dtopp::data

// Converts JSON text to values and back.
//
// Only json.cpp instantiates nlohmann's parser and printer. Every other file that called them would compile
// ten seconds longer or more.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/errors.h"

namespace dtopp {

using nlohmann::ordered_json;

// Copying, comparing and printing a value recurse, so the nesting of what was read is limited.
inline constexpr int kMaxJsonDepth = 100;

// Parses the content of `location` (a file or a line of a file). Throws DataError, naming the location, if
// the text is not JSON or nests deeper than kMaxJsonDepth. JsonFields reads the members of an object.
nlohmann::json parse_json(std::string_view text, const std::string& location);

// Prints on one line, or with `indent` spaces per level. Bytes that are not UTF-8 become U+FFFD.
std::string dump_json(const ordered_json& value, int indent = -1);

// Converts to and from MessagePack, which keeps every bit of every number and string. unpack_json accepts
// only output of pack_json.
std::string pack_json(const nlohmann::json& value);
nlohmann::json unpack_json(std::string_view bytes);

// The integer that a value holds. Throws json::type_error, as get() does for another type, if it is a
// fraction or lies beyond int64; get<int64_t>() would change these.
int64_t integer_of(const nlohmann::json& value);

// The number; null without one.
ordered_json number_json(const std::optional<double>& value);
// The numbers of an array, NaN for null. Throws json::type_error for anything else.
std::vector<double> numbers_of(const nlohmann::json& array);

// The text as a JSON string. With `ascii`, characters outside ASCII are escaped.
std::string quote_json(std::string_view text, bool ascii = false);

// Reads JSON objects member by member and checks the types. It is the only reader of such objects: files and
// requests parsed by nlohmann use JsonFields; large files parsed by simdjson bring a format of their own.

// A member is missing or wrong: "<place>: <field>: <cause>". The field is the path from the root, as in
// "files[2].size".
struct FieldError : DataError {
  FieldError(const std::string& place, const std::string& field, const std::string& cause)
      : DataError(place, ": ", field, ": ", cause), field(field), cause(cause) {}
  std::string field, cause;
};

// The cause of an error if a member is not of type T.
template <class T>
inline constexpr const char* kExpected =
    std::same_as<T, bool>                       ? "must be true or false"
    : std::same_as<T, int64_t>                  ? "must be an integer"
    : std::same_as<T, double>                   ? "must be a number"
    : std::same_as<T, std::string>              ? "must be a string"
    : std::same_as<T, std::vector<int64_t>>     ? "must be an array of integers"
    : std::same_as<T, std::vector<std::string>> ? "must be an array of strings"
                                                : nullptr;

std::string expected_range(int64_t lowest, int64_t highest);
std::string expected_range(double lowest, double highest);

// A JSON object. A member that is null counts as missing. Errors are FieldErrors.
//
// Json states how a parser's values are read: Value, find, is_object, and read, which returns false for
// another type.
template <class Json>
class BasicJsonFields {
 public:
  using Value = typename Json::Value;

  // `place` is a file, a line of a file or a request.
  BasicJsonFields(Value object, std::string place) : object_(std::move(object)), place_(std::move(place)) {
    if (!Json::is_object(object_)) throw DataError(place_, ": must be a JSON object");
  }
  // Parses `text`, the content of `place`.
  BasicJsonFields(std::string_view text, const std::string& place)
      : BasicJsonFields(Json::parse(text, place), place) {}

  std::optional<Value> find(const std::string& key) const { return Json::find(object_, key); }
  bool has(const std::string& key) const { return find(key).has_value(); }
  std::vector<std::string> keys() const { return Json::keys(object_); }  // in byte order

  // Reads a bool, int64_t, double, std::string, or a vector of integers or strings.
  template <class T>
  T get(const std::string& key) const {
    T value;
    if (!Json::read(need(key), value)) fail(key, kExpected<T>);
    return value;
  }
  template <class T>
  T get(const std::string& key, const T& otherwise) const {
    return has(key) ? get<T>(key) : otherwise;
  }
  std::string text(const std::string& key) const { return get<std::string>(key); }
  std::vector<std::string> texts(const std::string& key) const { return get<std::vector<std::string>>(key); }

  int64_t integer(const std::string& key, int64_t lowest = std::numeric_limits<int64_t>::min(),
                  int64_t highest = std::numeric_limits<int64_t>::max()) const {
    int64_t value;
    if (!Json::read(need(key), value) || value < lowest || value > highest)
      fail(key, expected_range(lowest, highest));
    return value;
  }
  uint64_t count(const std::string& key) const { return static_cast<uint64_t>(integer(key, 0)); }
  double number(const std::string& key, double lowest, double highest) const {
    double value;
    if (!Json::read(need(key), value) || !(value >= lowest && value <= highest))
      fail(key, expected_range(lowest, highest));
    return value;
  }
  // An array of at least one number; a single number counts as an array of one.
  std::vector<double> numbers(const std::string& key) const {
    const Value value = need(key);
    std::vector<double> numbers(1);
    if (!Json::read(value, numbers[0]) && (!Json::read(value, numbers) || numbers.empty()))
      fail(key, "must be a number or a list of numbers, at least one");
    return numbers;
  }

  BasicJsonFields object(const std::string& key) const { return part(need(key), key); }
  std::vector<BasicJsonFields> objects(const std::string& key) const {
    std::vector<Value> values;
    if (!Json::read(need(key), values)) fail(key, "must be an array of objects");
    std::vector<BasicJsonFields> objects;
    objects.reserve(values.size());
    for (Value& value : values) objects.push_back(part(std::move(value), at(key, objects.size())));
    return objects;
  }
  // Reads an object within this one. `key` is its path from here.
  BasicJsonFields part(Value value, const std::string& key) const {
    if (!Json::is_object(value)) fail(key, "must be a JSON object");
    BasicJsonFields part(*this);
    part.object_ = std::move(value);
    part.path_ = field(key) + ".";
    return part;
  }
  static std::string at(const std::string& key, size_t index) {
    return key + "[" + std::to_string(index) + "]";
  }

  const std::string& place() const { return place_; }
  std::string field(const std::string& key) const { return path_ + key; }  // the path from the root
  template <class... Parts>
  [[noreturn]] void fail(const std::string& key, const Parts&... cause) const {
    throw FieldError(place_, field(key), concat(cause...));
  }
  // The object as JSON text, its members in byte order.
  std::string dump() const { return Json::dump(object_); }

 private:
  Value need(const std::string& key) const {
    auto value = find(key);
    if (!value) fail(key, "is missing");
    return *std::move(value);
  }

  Value object_;
  std::string place_, path_;
};

// Values of nlohmann. A nested one shares ownership of the root.
struct JsonTree {
  using Value = std::shared_ptr<const nlohmann::json>;

  static Value parse(std::string_view text, const std::string& place);
  static std::optional<Value> find(const Value& object, const std::string& key);
  static std::vector<std::string> keys(const Value& object);
  static bool is_object(const Value& value);
  static bool read(const Value& value, bool& result);
  static bool read(const Value& value, int64_t& result);  // false for a fraction and beyond int64_t
  static bool read(const Value& value, double& result);
  static bool read(const Value& value, std::string& result);
  static bool read(const Value& value, std::vector<Value>& result);
  template <class T>
  static bool read(const Value& value, std::vector<T>& result) {
    std::vector<Value> items;
    if (!read(value, items)) return false;
    result.resize(items.size());
    for (size_t i = 0; i < items.size(); ++i)
      if (!read(items[i], result[i])) return false;
    return true;
  }
  static std::string dump(const Value& value);
};

using JsonFields = BasicJsonFields<JsonTree>;

}  // namespace dtopp

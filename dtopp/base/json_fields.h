// Reads JSON objects from files, member by member, and checks the types. It is the only reader of such
// objects.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/base/errors.h"

namespace dtopp {

// A JSON object. Every error is a DataError "<place>: <key>: <cause>". The place of a nested object includes
// its key.
class JsonFields {
 public:
  // Parses `text`, the content of `location` (a file or a line of a file).
  JsonFields(std::string_view text, std::string location);

  bool has(const std::string& key) const;
  bool is_array(const std::string& key) const;
  std::vector<std::string> keys() const;  // in byte order

  std::string text(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;
  int64_t integer(const std::string& key, int64_t lowest = std::numeric_limits<int64_t>::min(),
                  int64_t highest = std::numeric_limits<int64_t>::max()) const;
  uint64_t count(const std::string& key) const { return static_cast<uint64_t>(integer(key, 0)); }
  // An array of at least one number; a single number counts as an array of one.
  std::vector<double> numbers(const std::string& key) const;
  JsonFields object(const std::string& key) const;
  std::vector<JsonFields> objects(const std::string& key) const;

  [[noreturn]] void fail(const std::string& key, const std::string& cause) const;
  // The object as JSON text, its members in byte order.
  std::string dump() const;

 private:
  JsonFields(std::shared_ptr<const nlohmann::json> object, std::string location);
  const nlohmann::json& member(const std::string& key) const;
  JsonFields part(const nlohmann::json& value, const std::string& key) const;

  std::shared_ptr<const nlohmann::json> object_;  // a nested object shares ownership of the root
  std::string location_;
};

}  // namespace dtopp

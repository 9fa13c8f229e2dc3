// The one reader of JSON objects in files: member by member, with types checked.
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

// Every error is a DataError "<place>: <key>: <cause>"; the place of an object within another one includes
// its key.
class JsonFields {
 public:
  // The object that `text`, the content of `place` (a file, or a line of one), is.
  JsonFields(std::string_view text, std::string place);

  bool has(const std::string& key) const;
  bool is_array(const std::string& key) const;
  std::vector<std::string> keys() const;  // in byte order

  std::string text(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;
  int64_t integer(const std::string& key, int64_t lowest = std::numeric_limits<int64_t>::min(),
                  int64_t highest = std::numeric_limits<int64_t>::max()) const;
  uint64_t count(const std::string& key) const { return static_cast<uint64_t>(integer(key, 0)); }
  // A number counts as an array of one. At least one.
  std::vector<double> numbers(const std::string& key) const;
  JsonFields object(const std::string& key) const;
  std::vector<JsonFields> objects(const std::string& key) const;

  [[noreturn]] void fail(const std::string& key, const std::string& cause) const;
  // The object as text, its members in byte order.
  std::string dump() const;

 private:
  JsonFields(std::shared_ptr<const nlohmann::json> object, std::string place);
  const nlohmann::json& member(const std::string& key) const;
  JsonFields part(const nlohmann::json& value, const std::string& key) const;

  std::shared_ptr<const nlohmann::json> object_;  // a part shares the whole
  std::string place_;
};

}  // namespace dtopp

// Converts configuration structs to and from YAML. Each struct lists its fields once,
//
//   void visit_fields(SectionOf<OptimizerConfig> auto& config, auto&& field) { field("lr", config.lr); … }
//
// and reading, printing, comparing and the suggestions for mistyped keys use that list. The set of fields may
// depend on the value of an earlier field, because fields are read in order.
//
// A field is a bool, int64_t, double, string, a vector of integers, doubles or strings, an enum with
// enum_names(), a type with its own read_value and print_value, or another such struct.
//
// Throws:        UsageError "location: key: what is wrong"
#pragma once

#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/config/config_tree.h"

namespace dtopp::config {
// A value of the right type that is not allowed. A caller that knows the file adds the location.
struct InvalidValue : UsageError {
  template <class... Parts>
  InvalidValue(const std::string& key, const Parts&... cause) : UsageError(key, ": ", cause...), key(key) {}
  std::string key;
};

namespace detail {

struct AnyField {
  template <class T>
  void operator()(const char* /*name*/, T& /*value*/) const {}
};

template <class T>
concept Section = requires(T& config) {
  visit_fields(config, AnyField{});
};

std::string join_key(const std::string& section, std::string_view name);
std::string_view last_part(std::string_view key);  // after the last dot

[[noreturn]] void throw_wrong_type(const ConfigNode& node, const std::string& key,
                                   const std::string& expected);
[[noreturn]] void throw_unknown_key(const ConfigNode& value, const std::string& key,
                                    const std::vector<std::string>& known);

// The text of an unquoted scalar. Throws the error for a wrong type if the node is anything else.
std::string plain_text(const ConfigNode& node, const std::string& key, const std::string& expected);
// The same for a text that is one of `choices`. The error suggests the nearest one.
std::string choice_text(const ConfigNode& node, const std::string& key,
                        const std::vector<std::string>& choices);

void read_value(const ConfigNode& node, const std::string& key, bool& value);
void read_value(const ConfigNode& node, const std::string& key, int64_t& value);
void read_value(const ConfigNode& node, const std::string& key, double& value);
void read_value(const ConfigNode& node, const std::string& key, std::string& value);
void read_value(const ConfigNode& node, const std::string& key, std::vector<int64_t>& value);
void read_value(const ConfigNode& node, const std::string& key, std::vector<double>& value);
void read_value(const ConfigNode& node, const std::string& key, std::vector<std::string>& value);

template <class T>
requires std::is_enum_v<T>
void read_value(const ConfigNode& node, const std::string& key, T& value) {
  const auto names = enum_names(value);
  value = enum_named<T>(choice_text(node, key, {names.begin(), names.end()})).value();
}

std::string print_value(bool value);
std::string print_value(int64_t value);
std::string print_value(double value);
std::string print_value(const std::string& value);
std::string print_value(const std::vector<int64_t>& value);
std::string print_value(const std::vector<double>& value);
std::string print_value(const std::vector<std::string>& value);

template <class T>
requires std::is_enum_v<T> std::string print_value(T value) { return enum_name(value); }

// Calls body(key, value) for every key in field order. A section precedes its fields.
template <class Config, class Body>
void for_each_key(const Config& config, const std::string& section, const Body& body) {
  visit_fields(config, [&](const char* name, const auto& value) {
    const std::string key = join_key(section, name);
    body(key, value);
    if constexpr (Section<decltype(value)>) for_each_key(value, key, body);
  });
}

// known() returns the keys that errors suggest. It is called after all values are read, because they decide
// which keys exist.
template <class Config, class KnownKeys>
void read_section(const ConfigNode& node, const std::string& section, Config& config,
                  const KnownKeys& known) {
  if (node.kind == ConfigNode::Kind::kNull) return;
  if (node.kind != ConfigNode::Kind::kMapping)
    throw_wrong_type(node, section, "a section (key: value lines)");
  visit_fields(config, [&](const char* name, auto& value) {
    const ConfigNode* child = node.find(name);
    if (child == nullptr) return;
    const std::string key = join_key(section, name);
    if constexpr (Section<decltype(value)>) {
      read_section(*child, key, value, known);
    } else {
      read_value(*child, key, value);
    }
  });
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const std::string key = join_key(section, node.keys[i]);
    bool found = false;
    visit_fields(config, [&](const char* name, auto& /*value*/) { found = found || node.keys[i] == name; });
    if (!found) throw_unknown_key(node.items[i], key, known());
  }
}

}  // namespace detail

// Sets the fields that `tree` contains; the others keep their values.
template <class Config>
void read_config(const ConfigNode& tree, Config& config) {
  detail::read_section(tree, "", config, [&] {
    std::vector<std::string> keys;
    detail::for_each_key(config, "", [&](const std::string& key, const auto&) { keys.push_back(key); });
    return keys;
  });
}

// Block YAML with every field, in field order. Reading it back gives an equal struct, also for doubles.
template <class Config>
std::string print_config(const Config& config) {
  using detail::print_value;
  std::string out;
  detail::for_each_key(config, "", [&](const std::string& key, const auto& value) {
    out.append(2 * static_cast<size_t>(std::ranges::count(key, '.')), ' ').append(detail::last_part(key));
    out.append(":");
    if constexpr (!detail::Section<decltype(value)>) out.append(" ").append(print_value(value));
    out.append("\n");
  });
  return out;
}

// A pair such as ("model.hidden_size", "128") for every leaf, in field order.
template <class Config>
std::vector<std::pair<std::string, std::string>> flatten_config(const Config& config) {
  using detail::print_value;
  std::vector<std::pair<std::string, std::string>> leaves;
  detail::for_each_key(config, "", [&](const std::string& key, const auto& value) {
    if constexpr (!detail::Section<decltype(value)>) leaves.emplace_back(key, print_value(value));
  });
  return leaves;
}

// The known key that is nearest to `key` in edit distance, compared as a whole and by its last part. Empty if
// none is near.
std::string nearest_key(const std::string& key, const std::vector<std::string>& known);

// "did you mean NEAREST?", or "LIST a, b" with the words of `listed` if no known word is near.
std::string suggest(const std::string& word, const std::vector<std::string>& known, const std::string& list,
                    const std::vector<std::string>& listed);

// A value that is 0 because its key is missing, or because it is set to 0.
struct MissingValue : InvalidValue {
  using InvalidValue::InvalidValue;
};

// Check bounds that values of several sections share. Throw InvalidValue.
void require_at_least(const char* key, int64_t least, int64_t value);
void require_between(const char* key, int64_t least, int64_t most, int64_t value);
void require_between(const char* key, double least, double most, double value);
void require_not_negative(const char* key, double value);
void require_threshold(const char* key, double value);  // in (0, 1)
void require_share(const char* key, double value);      // in [0, 1)

}  // namespace dtopp::config

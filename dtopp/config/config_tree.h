// Configuration files as trees of values that remember the file and line they came from. Files are untrusted:
// size, nesting and number of values are limited, aliases and tags are refused, duplicate keys are errors.
// Every error is one line that names the place: a UsageError, or a DataError where the system refuses to
// read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp {

struct ConfigNode {
  enum class Kind { kNull, kScalar, kList, kMapping };

  Kind kind = Kind::kNull;
  std::string text;                           // of a scalar
  bool quoted = false;                        // the scalar was quoted: never a number, a bool or null
  std::vector<std::string> keys;              // of a mapping, beside items
  std::vector<ConfigNode> items;              // of a list or a mapping
  std::shared_ptr<const std::string> source;  // a file's path, or "argument 'key=value'"
  int line = 0;                               // from 1; of the key where there is one; 0: not from a file

  // "configs/a.yaml:12"
  std::string place() const;
  // The value of `key` in this mapping; null where it is not there.
  const ConfigNode* find(std::string_view key) const;
};

constexpr uint64_t kMaxConfigBytes = 1 << 20;

// One YAML document. `source` is what errors call it; `with_lines` where its lines mean something.
ConfigNode parse_config(const std::string& text, const std::string& source, bool with_lines = true);

// Throws where `text` is not UTF-8 or holds control characters other than tab and line ends.
void require_text(std::string_view text, const std::string& source);

// The mapping that a file holds by itself, whatever its keys mean; an empty file is an empty one. `named_by`
// goes before every error: the place that names the file.
ConfigNode read_config_file(const std::filesystem::path& path, const std::string& named_by = "");

// The file at `path` laid over the file its top-level key `base` names (relative to the file that names it),
// and so on. Mappings merge; lists and scalars replace.
ConfigNode load_config_tree(const std::filesystem::path& path, std::string named_by = "");

// Lays `value` over what the tree has at "section.key"; the key is words between dots.
void set_value(ConfigNode& tree, const std::string& key, ConfigNode value);

// Lays `key.path=value` over the tree. The value is taken as it stands, or read as YAML where it begins with
// one of [ { " '.
void apply_override(ConfigNode& tree, const std::string& argument);

// Where the value of "section.key" was set: its place, or the tree's source where it was not.
std::string place_of(const ConfigNode& tree, std::string_view key);

// `text` between quotes for a message: cut to 60 characters, control characters replaced.
std::string quote_for_message(std::string_view text);

}  // namespace dtopp

// Parses configuration files into trees of values that store their file and line.
//
// Files are untrusted. Size, nesting and number of values are limited; aliases, tags and duplicate keys are
// errors.
//
// Throws:        UsageError, one line with the location; DataError if the system cannot read a file
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace dtopp::config {

// SectionOf<T, Section>: T is Section or const Section. Its visit_fields takes both, to read and to print.
template <class T, class Section>
concept SectionOf = std::same_as<std::remove_const_t<T>, Section>;

struct ConfigNode {
  enum class Kind { kNull, kScalar, kList, kMapping };

  Kind kind = Kind::kNull;
  std::string text;                           // scalar only
  bool quoted = false;                        // a quoted scalar is never a number, a bool or null
  std::vector<std::string> keys;              // mapping only; parallel to items
  std::vector<ConfigNode> items;              // list or mapping
  std::shared_ptr<const std::string> source;  // a file's path, or "argument 'key=value'"
  int line = 0;                               // from 1; of the key if there is one; 0: not from a file

  // The location for messages, such as "configs/a.yaml:12".
  std::string location() const;
  // The value of `key` in this mapping; null if the key is missing.
  const ConfigNode* find(std::string_view key) const;
};

constexpr uint64_t kMaxConfigBytes = 1 << 20;

// Parses one YAML document. Errors call the text `source`, and give line numbers if `with_lines` is true.
ConfigNode parse_config(const std::string& text, const std::string& source, bool with_lines = true);

// Throws UsageError if `text` is not UTF-8 or has control characters other than tab and line ends.
void require_text(std::string_view text, const std::string& source);

// The mapping in one file alone: it does not read `base` files and does not interpret keys. An empty file is
// an empty mapping. An error of reading the file starts with `named_by`, the location that names the file.
ConfigNode read_config_file(const std::filesystem::path& path, const std::string& named_by = "");

// Reads the file at `path` and merges it over the file that its top-level key `base` names, recursively. A
// base path is relative to the file that contains it. Mappings merge; lists and scalars replace.
//
// `methods` holds named layers. A file or a setting `method: NAME` merges that layer over the files below it,
// and then its other keys. The tree keeps both keys. `named_by` is as in read_config_file, for `path`.
ConfigNode load_config_tree(const std::filesystem::path& path, std::string named_by = "");

// Sets "section.key" in the tree: a mapping is merged with an existing one, any other value replaces. The key
// is words separated by dots.
void set_value(ConfigNode& tree, const std::string& key, ConfigNode value);

// Merges `key.path=value` into the tree. The value is a plain text, or YAML if it begins with one of [ { " '.
void apply_override(ConfigNode& tree, const std::string& argument);
// The same for several, in order, but `method=` first: it must not replace the others' values.
void apply_overrides(ConfigNode& tree, std::vector<std::string> arguments);

// Removes a key from a mapping and returns its value.
std::optional<ConfigNode> take(ConfigNode& tree, std::string_view key);

// The location at which "section.key" was set; the tree's source if it was not set.
std::string location_of(const ConfigNode& tree, std::string_view key);

// `text` in quotes for a message: cut to 60 characters, with control characters replaced.
std::string quote_for_message(std::string_view text);

}  // namespace dtopp::config

#include "dtopp/config/config_tree.h"

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/config/config.h"

namespace dtopp::config {
namespace {

using Kind = ConfigNode::Kind;

constexpr size_t kMaxKeyParts = 32;
constexpr size_t kMaxBases = 16;

// Merges `top` into `node`; values of `top` win.
void merge(ConfigNode& node, ConfigNode top) {
  if (top.kind == Kind::kNull && node.kind == Kind::kMapping) return;  // "section:" without content
  if (top.kind != Kind::kMapping || node.kind != Kind::kMapping) {
    node = std::move(top);
    return;
  }
  for (size_t i = 0; i < top.keys.size(); ++i) {
    const auto found = std::find(node.keys.begin(), node.keys.end(), top.keys[i]);
    if (found == node.keys.end()) {
      node.keys.push_back(std::move(top.keys[i]));
      node.items.push_back(std::move(top.items[i]));
    } else {
      merge(node.items[found - node.keys.begin()], std::move(top.items[i]));
    }
  }
  node.source = top.source;
  node.line = top.line;
}

ConfigNode mapping_of(const std::string& key, ConfigNode value) {
  ConfigNode node;
  node.kind = Kind::kMapping;
  node.source = value.source;
  node.line = value.line;
  node.keys.push_back(key);
  node.items.push_back(std::move(value));
  return node;
}

// The layer of `methods` that `name` names.
ConfigNode method_named(const ConfigNode& tree, const ConfigNode& name) {
  const ConfigNode* methods = tree.find("methods");
  if (methods == nullptr)
    throw UsageError(name.location(), ": method: this configuration defines no methods; set routing.method");
  const auto known = std::ranges::find(methods->keys, name.text);
  if (known == methods->keys.end()) detail::choice_text(name, "method", methods->keys);  // throws
  return methods->items.at(known - methods->keys.begin());
}

// "; did you mean DIR/NAME.yaml method=…?" if DIR/NAME-….yaml is missing and DIR/NAME.yaml exists.
std::string preset_hint(const fs::path& missing) {
  const std::string wanted = missing.stem().string();
  for (size_t dash = wanted.rfind('-'); dash != std::string::npos && dash > 0;
       dash = wanted.rfind('-', dash - 1)) {
    const fs::path preset = missing.parent_path() / (wanted.substr(0, dash) + missing.extension().string());
    if (path_kind(preset) == PathKind::kNothing) continue;
    const ConfigNode tree = load_config_tree(preset);
    const ConfigNode* methods = tree.find("methods");
    std::string method = wanted.substr(dash + 1);
    std::ranges::replace(method, '-', '_');
    if (methods != nullptr) method = nearest_key(method, methods->keys);
    return "; did you mean " + preset.string() + (methods && !method.empty() ? " method=" + method : "") +
           "?";
  }
  return "";
}

std::string read_config_text(const fs::path& path) {
  if (path_kind(path) == PathKind::kNothing)
    throw UsageError(path, ": there is no such configuration file", preset_hint(path));
  // Reading a pipe could block forever.
  if (!fs::is_regular_file(path)) throw UsageError(path, ": not a regular file");
  if (fs::file_size(path) > kMaxConfigBytes)
    throw UsageError(path, ": larger than ", kMaxConfigBytes, " bytes");
  return read_file(path, kMaxConfigBytes);
}

// Merges one layer of the configuration: first its `methods`, then the method that it names, then its other
// keys. Its own keys so win over those of its method, and the method wins over the layers below.
void merge_layer(ConfigNode& tree, ConfigNode top) {
  if (auto methods = take(top, "methods")) merge(tree, mapping_of("methods", std::move(*methods)));
  if (const ConfigNode* name = top.find("method")) merge(tree, method_named(tree, *name));
  merge(tree, std::move(top));
}

// True for words separated by dots.
bool is_key(const std::string& text) {
  return !text.empty() && text.front() != '.' && text.back() != '.' && text.find("..") == std::string::npos;
}

}  // namespace

std::string ConfigNode::location() const {
  const std::string& name = source ? *source : "configuration";
  return line > 0 ? name + ":" + std::to_string(line) : name;
}

const ConfigNode* ConfigNode::find(std::string_view key) const {
  const auto found = std::find(keys.begin(), keys.end(), key);
  return found == keys.end() ? nullptr : &items[found - keys.begin()];
}

std::optional<ConfigNode> take(ConfigNode& tree, std::string_view key) {
  const auto found = std::find(tree.keys.begin(), tree.keys.end(), key);
  if (found == tree.keys.end()) return std::nullopt;
  const auto item = tree.items.begin() + (found - tree.keys.begin());
  ConfigNode value = std::move(*item);
  tree.keys.erase(found);
  tree.items.erase(item);
  return value;
}

ConfigNode read_config_file(const fs::path& path, const std::string& named_by) {
  std::string text;
  try {
    text = read_config_text(path);
  } catch (const UsageError& error) {
    throw UsageError(named_by, error.what());
  } catch (const DataError& error) {
    throw DataError(named_by, error.what());
  }
  ConfigNode tree = parse_config(text, path.string());
  if (tree.kind == Kind::kNull) tree.kind = Kind::kMapping;
  if (tree.kind != Kind::kMapping)
    throw UsageError(tree.location(), ": a configuration is a mapping (key: value), this is a ",
                     (tree.kind == Kind::kList ? "list" : "single value"));
  return tree;
}

ConfigNode load_config_tree(const fs::path& path, std::string named_by) {
  std::vector<ConfigNode> layers;
  std::vector<fs::path> seen;
  fs::path next = path;
  while (true) {
    layers.push_back(read_config_file(next, named_by));
    std::error_code error;
    const fs::path identity = fs::canonical(next, error);
    if (std::find(seen.begin(), seen.end(), identity) != seen.end())
      throw UsageError(named_by, next, " is its own base; break the circle");
    seen.push_back(identity);
    const std::optional<ConfigNode> base = take(layers.back(), "base");
    if (!base) break;
    if (base->kind != Kind::kScalar || base->text.empty())
      throw UsageError(base->location(), ": base: expected the path of another configuration file");
    if (layers.size() >= kMaxBases)
      throw UsageError(base->location(), ": base: a chain of more than ", kMaxBases, " files");
    named_by = base->location() + ": base: ";
    next = (next.parent_path() / base->text).lexically_normal();
  }
  ConfigNode tree;
  tree.kind = Kind::kMapping;
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) merge_layer(tree, std::move(*layer));
  tree.source = std::make_shared<const std::string>(path.string());
  tree.line = 0;
  return tree;
}

void set_value(ConfigNode& tree, const std::string& key, ConfigNode value) {
  if (!is_key(key))
    throw UsageError(value.location(), ": ", quote_for_message(key),
                     " is not a key; write words separated by dots, such as training.steps");
  // Wraps the value from the innermost key outwards, in mappings of one key each, and merges the result into
  // the tree.
  size_t end = key.size();
  size_t depth = 0;
  while (end != std::string::npos) {
    if (++depth > kMaxKeyParts) throw UsageError(value.location(), ": the key has too many parts");
    const size_t dot = key.rfind('.', end - 1);
    const size_t begin = dot == std::string::npos ? 0 : dot + 1;
    value = mapping_of(key.substr(begin, end - begin), std::move(value));
    end = dot;
  }
  const auto tree_source = tree.source;
  const int tree_line = tree.line;
  merge_layer(tree, std::move(value));
  tree.source = tree_source;
  tree.line = tree_line;
}

void apply_override(ConfigNode& tree, const std::string& argument) {
  const std::string source = "argument " + quote_for_message(argument);
  const size_t equals = argument.find('=');
  const std::string path = argument.substr(0, equals);
  if (equals == std::string::npos || !is_key(path))
    throw UsageError(source, ": expected key.path=value, for example training.steps=1000");
  const std::string value = argument.substr(equals + 1);
  require_text(argument, source);

  ConfigNode leaf;
  if (!value.empty() && std::string_view("[{\"'").find(value.front()) != std::string_view::npos) {
    leaf = parse_config(value, source, false);
  } else {
    leaf.kind = Kind::kScalar;
    leaf.text = value;
    leaf.quoted = value.empty();
  }
  leaf.source = std::make_shared<const std::string>(source);
  set_value(tree, path, std::move(leaf));
}

void apply_overrides(ConfigNode& tree, std::vector<std::string> arguments) {
  std::stable_partition(arguments.begin(), arguments.end(),
                        [](const std::string& one) { return one.starts_with("method="); });
  for (const std::string& argument : arguments) apply_override(tree, argument);
}

std::string location_of(const ConfigNode& tree, std::string_view key) {
  const ConfigNode* node = &tree;
  for (size_t begin = 0; node != nullptr && begin <= key.size();) {
    const size_t dot = std::min(key.find('.', begin), key.size());
    node = node->kind == Kind::kMapping ? node->find(key.substr(begin, dot - begin)) : nullptr;
    begin = dot + 1;
  }
  return node != nullptr ? node->location() : tree.location();
}

std::string quote_for_message(std::string_view text) {
  constexpr size_t kLongest = 60;
  std::string out = "'";
  size_t cut = std::min(text.size(), kLongest);
  // Do not cut inside a UTF-8 character.
  while (cut < text.size() && cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) --cut;
  for (const char c : text.substr(0, cut)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? '?' : c;
  return out + (cut < text.size() ? "…'" : "'");
}

}  // namespace dtopp::config

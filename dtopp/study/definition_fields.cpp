#include "dtopp/study/definition_fields.h"

#include "dtopp/base/errors.h"

namespace dtopp::study {
namespace {

using Kind = config::ConfigNode::Kind;

[[noreturn]] void fail(const config::ConfigNode& node, const std::string& cause) {
  throw UsageError(node.location() + ": " + cause);
}

}  // namespace

void append_settings(const config::ConfigNode& node, const std::string& section,
                     std::vector<Setting>& settings) {
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const std::string key = config::detail::join_key(section, node.keys[i]);
    if (node.items[i].kind == Kind::kMapping)
      append_settings(node.items[i], key, settings);
    else
      settings.push_back({key, node.items[i]});
  }
}

void read_value(const config::ConfigNode& node, const std::string& key, Variants& variants) {
  if (node.kind != Kind::kMapping || node.keys.empty())
    config::detail::throw_wrong_type(node, key,
                                     "variants by name, each with its settings (name: {key: value})");
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const config::ConfigNode& item = node.items[i];
    if (item.kind != Kind::kMapping && item.kind != Kind::kNull)
      config::detail::throw_wrong_type(item, config::detail::join_key(key, node.keys[i]),
                                       "the variant's settings ({key: value})");
    if (node.keys[i].empty()) fail(item, key + ": a variant needs a name");
    Variant& variant = variants.all.emplace_back(Variant{node.keys[i], {}});
    append_settings(item, "", variant.settings);
  }
}

void read_value(const config::ConfigNode& node, const std::string& key, Axes& axes) {
  if (node.kind == Kind::kNull) return;
  if (node.kind != Kind::kMapping)
    config::detail::throw_wrong_type(node, key, "keys with their values ({key: [value, value]})");
  std::vector<Setting> settings;
  append_settings(node, "", settings);
  for (Setting& setting : settings) {
    if (setting.value.kind != Kind::kList || setting.value.items.empty())
      config::detail::throw_wrong_type(setting.value, key + "." + setting.key, "a list of values");
    axes.all.push_back({setting.key, setting.value.items, setting.value.location()});
  }
}

void read_value(const config::ConfigNode& node, const std::string& key, Commands& commands) {
  if (node.kind != Kind::kMapping)
    config::detail::throw_wrong_type(node, key, "commands by name (name: dtopp evaluate images {run} …)");
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const std::string& name = node.keys[i];
    if (name.empty() || name.find_first_of("/ .") != std::string::npos)
      fail(node.items[i],
           key + ": " + config::quote_for_message(name) + " names a file; remove slashes, dots and spaces");
    AfterCommand& command = commands.all.emplace_back(AfterCommand{name, ""});
    const std::string path = config::detail::join_key(key, name);
    config::detail::read_value(node.items[i], path, command.line);
    if (command.line.find_first_not_of(' ') == std::string::npos)
      fail(node.items[i], path + ": is empty; name a program");
  }
}

void read_value(const config::ConfigNode& node, const std::string& key, Comparisons& comparisons) {
  if (node.kind != Kind::kList)
    config::detail::throw_wrong_type(node, key,
                                     "a list of comparisons ([{name: …, of: …, less: …, measure: …}])");
  for (const config::ConfigNode& item : node.items) {
    PlannedComparison& planned = comparisons.all.emplace_back();
    config::read_config(item, planned);
    const auto require = [&](bool holds, const char* field, const char* what) {
      if (!holds)
        fail(item, key + ": " + config::quote_for_message(planned.name) + ": " + field + ": " + what);
    };
    require(!planned.name.empty(), "name", "is missing");
    require(!planned.of.empty(), "of", "is missing; name a variant");
    require(!planned.less.empty(), "less", "is missing; name a variant");
    require(!planned.measure.empty(), "measure", "is missing");
    require(planned.margin >= 0, "margin", "must not be negative");
    require(planned.excluded >= 0, "excluded", "must not be negative");
    require(planned.over.of.empty() == planned.over.less.empty(), "over", "needs both of and less");
    require(!planned.is_ratio() || planned.family.empty(), "family", "a ratio has no test; remove family");
    planned.location = item.location();
  }
}

void read_value(const config::ConfigNode& node, const std::string& key, SeedsByVariant& seeds) {
  if (node.kind != Kind::kMapping)
    config::detail::throw_wrong_type(node, key, "variants with their seeds ({name: [1, 2]})");
  for (size_t i = 0; i < node.keys.size(); ++i) {
    auto& [variant, own] = seeds.all.emplace_back(node.keys[i], std::vector<int64_t>{});
    const std::string path = config::detail::join_key(key, variant);
    config::detail::read_value(node.items[i], path, own);
    if (own.empty()) fail(node.items[i], path + ": is empty; remove the variant instead");
  }
}

}  // namespace dtopp::study

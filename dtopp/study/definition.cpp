#include "dtopp/study/definition.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "dtopp/base/errors.h"
#include "dtopp/config/config.h"

namespace dtopp::study {
namespace {

using Kind = config::ConfigNode::Kind;

// Sections of the file that have their own structure.
struct Variants {
  std::vector<Variant> all;
};
struct Axis {
  std::string key;
  std::vector<config::ConfigNode> values;
  std::string location;
};
struct Axes {
  std::vector<Axis> all;
};
struct Commands {
  std::vector<AfterCommand> all;
};

struct StudyFile {
  std::string base;
  std::vector<int64_t> seeds;
  Variants variants;
  Axes grid, zip;
  std::vector<std::string> measure;
  Commands after;
  std::string output;
};

void visit_fields(config::SectionOf<StudyFile> auto& config, auto&& field) {
  field("base", config.base);
  field("seeds", config.seeds);
  field("variants", config.variants);
  field("grid", config.grid);
  field("zip", config.zip);
  field("measure", config.measure);
  field("after", config.after);
  field("output", config.output);
}

[[noreturn]] void fail(const config::ConfigNode& node, const std::string& cause) {
  throw UsageError(node.location() + ": " + cause);
}

// {routing.method: top_k} and {routing: {method: top_k}} are one setting each.
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
      config::detail::throw_wrong_type(item, key + "." + node.keys[i],
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
    config::detail::read_value(node.items[i], key + "." + name, command.line);
    if (command.line.find_first_not_of(' ') == std::string::npos)
      fail(node.items[i], key + "." + name + ": is empty; name a program");
  }
}

// Returns whether one key is the other or one of its sections.
bool overlap(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return b.starts_with(a) && (a.size() == b.size() || b[a.size()] == '.');
}

// The keys that are set and their owners. A key with two owners is an error: one value would silently replace
// the other.
class Claims {
 public:
  // Throws UsageError if the key has an owner already.
  void add(const std::string& key, const std::string& owner, const std::string& location) {
    refuse(key, location);
    share(key, owner);
  }
  void share(const std::string& key, const std::string& owner) { claims_.emplace_back(key, owner); }
  void refuse(const std::string& key, const std::string& location) const {
    for (const auto& [claimed, owner] : claims_) {
      if (!overlap(key, claimed)) continue;
      std::string message = location;
      message.append(": ")
          .append(key)
          .append(": conflicts with the value that ")
          .append(owner)
          .append(" sets; remove one");
      throw UsageError(message);
    }
  }

 private:
  std::vector<std::pair<std::string, std::string>> claims_;
};

// Expands the grid. The first key of `grid` varies slowest. All keys of `zip` advance together and vary
// fastest.
std::vector<GridPoint> points_of(const Axes& grid, const Axes& zip) {
  std::vector<GridPoint> points(1);
  const auto multiply = [&](size_t count, const auto& add) {
    if (points.size() * count > kMaxStudyRuns)
      throw UsageError("the study's grid has more points than a study may have runs");
    std::vector<GridPoint> more;
    for (const GridPoint& point : points) {
      for (size_t i = 0; i < count; ++i) add(more.emplace_back(point), i);
    }
    points = std::move(more);
  };
  for (const Axis& axis : grid.all) {
    multiply(axis.values.size(), [&](GridPoint& point, size_t i) {
      point.push_back({axis.key, axis.values[i]});
    });
  }
  if (zip.all.empty()) return points;
  const Axis& first = zip.all.front();
  for (const Axis& axis : zip.all) {
    if (axis.values.size() != first.values.size())
      throw UsageError(axis.location + ": zip: " + axis.key + " has " + std::to_string(axis.values.size()) +
                       " values and " + first.key + " " + std::to_string(first.values.size()) +
                       "; lists of zip must have equal lengths");
  }
  multiply(first.values.size(), [&](GridPoint& point, size_t i) {
    for (const Axis& axis : zip.all) point.push_back({axis.key, axis.values[i]});
  });
  return points;
}

bool is_of_study(const std::string& argument) {
  constexpr std::array<std::string_view, 3> kKeys = {"seeds", "measure", "output"};
  return std::ranges::any_of(kKeys, [&](std::string_view key) {
    return argument.starts_with(key) && argument.substr(key.size()).starts_with('=');
  });
}

template <class T>
void require_distinct(const std::vector<T>& values, const std::string& location, const std::string& key) {
  if (std::set<T>(values.begin(), values.end()).size() != values.size())
    throw UsageError(location + ": " + key + ": holds the same entry twice");
}

void check(const StudyFile& file, const config::ConfigNode& tree) {
  const auto require = [&](bool is_there, const char* key, const char* what) {
    if (!is_there) throw UsageError(config::location_of(tree, key) + ": " + key + ": " + what);
  };
  require(!file.base.empty(), "base", "is missing; name the configuration that all runs share");
  require(!file.measure.empty(), "measure",
          "is missing; name the metrics to compare, for example [val/loss]");
  require(!file.output.empty(), "output", "is missing; name a directory for the study");
  require_distinct(file.seeds, config::location_of(tree, "seeds"), "seeds");
  require_distinct(file.measure, config::location_of(tree, "measure"), "measure");
  const auto smallest = std::ranges::min_element(file.seeds);
  require(smallest == file.seeds.end() || *smallest >= 0, "seeds", "must not be negative");
}

Claims claims_of(const StudyFile& file) {
  Claims claims;
  for (const char* key : {"training.seed", "output", "name"}) claims.share(key, "the study itself");
  for (const Axes* axes : {&file.grid, &file.zip}) {
    for (const Axis& axis : axes->all)
      claims.add(axis.key, axes == &file.grid ? "grid" : "zip", axis.location);
  }
  Claims all = claims;
  for (const Variant& variant : file.variants.all) {
    Claims own = claims;
    for (const Setting& setting : variant.settings) {
      own.add(setting.key, "variant " + variant.name, setting.value.location());
      all.share(setting.key, "variant " + variant.name);
    }
  }
  return all;
}

}  // namespace

Study load_study(const std::filesystem::path& file, const std::vector<std::string>& arguments) {
  config::ConfigNode tree = config::read_config_file(file);
  for (const std::string& argument : arguments) {
    if (is_of_study(argument)) config::apply_override(tree, argument);
  }
  StudyFile fields;
  config::read_config(tree, fields);
  if (fields.variants.all.empty()) fields.variants.all.push_back({"base", {}});
  check(fields, tree);
  const Claims claims = claims_of(fields);
  const std::string base_location = config::location_of(tree, "base") + ": base: ";
  config::ConfigNode base =
      config::load_config_tree((file.parent_path() / fields.base).lexically_normal(), base_location);
  std::vector<std::string> overrides = arguments;
  std::erase_if(overrides, is_of_study);
  config::apply_overrides(base, overrides);
  for (const std::string& argument : overrides)
    claims.refuse(argument.substr(0, argument.find('=')), "argument " + config::quote_for_message(argument));
  return {file,
          std::move(base),
          std::move(overrides),
          fields.seeds,
          std::move(fields.variants.all),
          points_of(fields.grid, fields.zip),
          fields.measure,
          std::move(fields.after.all),
          fields.output};
}

}  // namespace dtopp::study

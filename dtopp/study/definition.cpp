#include "dtopp/study/definition.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "dtopp/base/errors.h"
#include "dtopp/config/config.h"
#include "dtopp/study/definition_fields.h"

namespace dtopp::study {
namespace {

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

template <class T>
void require_distinct(const std::vector<T>& values, const std::string& location, const std::string& key) {
  if (std::set<T>(values.begin(), values.end()).size() != values.size())
    throw UsageError(location + ": " + key + ": holds the same entry twice");
}

constexpr std::string_view kVariants = "variants";

bool sets_key(std::string_view argument, std::string_view key) {
  return argument.starts_with(key) && argument.substr(key.size()).starts_with('=');
}

bool is_of_study(const std::string& argument) {
  constexpr std::array<std::string_view, 4> kKeys = {"seeds", "measure", "ledger", "output"};
  return std::ranges::any_of(kKeys, [&](std::string_view key) { return sets_key(argument, key); });
}

bool is_of_variants(const std::string& argument) {
  return sets_key(argument, kVariants) || argument.starts_with("variants.");
}

std::vector<std::string> names_of(const std::vector<Variant>& variants) {
  std::vector<std::string> names;
  for (const Variant& variant : variants) names.push_back(variant.name);
  return names;
}

// Throws UsageError "location: key: …" if there is no such variant.
Variant& find_variant(std::vector<Variant>& variants, const std::string& name, const std::string& where) {
  const auto found = std::ranges::find(variants, name, &Variant::name);
  if (found != variants.end()) return *found;
  const auto names = names_of(variants);
  throw UsageError(where + ": no variant is named " + config::quote_for_message(name) + "; " +
                   config::suggest(name, names, "the variants are", names));
}

// variants=[a, b]: the others do not run.
void select_variants(std::vector<Variant>& variants, const std::string& argument) {
  config::ConfigNode tree;
  config::apply_override(tree, argument);
  std::vector<std::string> names;
  config::detail::read_value(*tree.find(kVariants), std::string(kVariants), names);
  if (names.empty()) throw UsageError(tree.find(kVariants)->location() + ": names no variant");
  for (Variant& variant : variants) variant.runs = false;
  for (const std::string& name : names)
    find_variant(variants, name, tree.find(kVariants)->location()).runs = true;
}

// variants.NAME.key=value. A name may have dots, so the longest name that fits counts.
void set_in_variant(std::vector<Variant>& variants, const std::string& argument) {
  const std::string rest = argument.substr(kVariants.size() + 1);
  const std::string where = "argument " + config::quote_for_message(argument);
  Variant* variant = nullptr;
  for (Variant& candidate : variants) {
    const bool fits = rest.starts_with(candidate.name + ".");
    if (fits && (variant == nullptr || candidate.name.size() > variant->name.size())) variant = &candidate;
  }
  if (variant == nullptr) find_variant(variants, rest.substr(0, rest.find_first_of(".=")), where);
  config::ConfigNode tree;
  config::apply_override(tree, rest.substr(variant->name.size() + 1));
  std::vector<Setting> settings;
  append_settings(tree, "", settings);
  for (Setting& setting : settings) {
    std::erase_if(variant->settings, [&](const Setting& before) { return before.key == setting.key; });
    variant->settings.push_back(std::move(setting));
  }
}

void apply_to_variants(std::vector<Variant>& variants, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (sets_key(argument, kVariants)) select_variants(variants, argument);
    if (argument.starts_with("variants.")) set_in_variant(variants, argument);
  }
}

// Stores the seeds of `only` with their variants. `seeds` are those of the file; an argument may select
// others.
void assign_seeds(DefinitionFields& file, const std::vector<int64_t>& seeds, const std::string& location) {
  const std::string where = location + ": only";
  for (const auto& [name, own] : file.only.all) {
    find_variant(file.variants.all, name, where).only = own;
    for (const int64_t seed : own) {
      if (std::ranges::find(seeds, seed) == seeds.end())
        throw UsageError(where + "." + name + ": " + std::to_string(seed) + " is no seed of the study");
    }
  }
}

void check_comparisons(const DefinitionFields& file, std::vector<Variant>& variants) {
  for (const PlannedComparison& planned : file.compare.all) {
    const std::string where = planned.location + ": compare: " + config::quote_for_message(planned.name);
    for (const std::string* name : {&planned.of, &planned.less, &planned.over.of, &planned.over.less}) {
      if (!name->empty()) find_variant(variants, *name, where);
    }
    if (std::ranges::find(file.measure, planned.measure) == file.measure.end())
      throw UsageError(where + ": " + planned.measure + " is no measure of the study; add it to measure");
    if (!file.grid.all.empty() || !file.zip.all.empty())
      throw UsageError(where + ": a study with a grid or zip has no single difference of two variants");
  }
  std::vector<std::string> names;
  for (const PlannedComparison& planned : file.compare.all) names.push_back(planned.name);
  if (!names.empty()) require_distinct(names, file.compare.all.front().location, "compare");
}

void check(const DefinitionFields& file, const config::ConfigNode& tree) {
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

void refuse_run(const config::ConfigNode& tree) {
  if (tree.find("measure") != nullptr) return;
  for (const char* key : {"model", "routing", "optimizer", "data", "training"}) {
    if (const config::ConfigNode* node = tree.find(key))
      throw UsageError(node->location() + ": " + key +
                       ": belongs to the configuration of a run, not to a study; use dtopp train");
  }
}

Claims claims_of(const DefinitionFields& file) {
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
  refuse_run(tree);
  std::vector<int64_t> seeds_of_file;
  if (const config::ConfigNode* seeds = tree.find("seeds"); seeds != nullptr)
    config::detail::read_value(*seeds, "seeds", seeds_of_file);
  bool ledger_is_argument = false;
  for (const std::string& argument : arguments) {
    if (is_of_study(argument)) config::apply_override(tree, argument);
    ledger_is_argument |= sets_key(argument, "ledger");
  }
  DefinitionFields fields;
  config::read_config(tree, fields);
  std::vector<Variant>& variants = fields.variants.all;
  if (variants.empty()) variants.push_back({"base", {}});
  assign_seeds(fields, seeds_of_file, config::location_of(tree, "only"));
  std::filesystem::path ledger = fields.ledger;
  if (!ledger.empty() && !ledger_is_argument) ledger = (file.parent_path() / ledger).lexically_normal();
  check(fields, tree);
  check_comparisons(fields, variants);
  apply_to_variants(variants, arguments);
  const Claims claims = claims_of(fields);
  const std::string base_location = config::location_of(tree, "base") + ": base: ";
  config::ConfigNode base =
      config::load_config_tree((file.parent_path() / fields.base).lexically_normal(), base_location);
  std::vector<std::string> overrides = arguments;
  std::erase_if(overrides, [](const std::string& argument) {
    return is_of_study(argument) || is_of_variants(argument);
  });
  config::apply_overrides(base, overrides);
  for (const std::string& argument : overrides)
    claims.refuse(argument.substr(0, argument.find('=')), "argument " + config::quote_for_message(argument));
  return {file,
          std::move(base),
          std::move(overrides),
          fields.seeds,
          std::move(variants),
          points_of(fields.grid, fields.zip),
          fields.measure,
          std::move(fields.compare.all),
          std::move(fields.after.all),
          ledger,
          fields.output};
}

}  // namespace dtopp::study

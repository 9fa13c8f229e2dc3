#include "dtopp/study/definition.h"

#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"

namespace dtopp::study {
namespace {

struct Axis {
  std::string key;
  std::vector<config::ConfigNode> values;
  std::string location;
};

// A section with its own structure. Its read_value throws UsageError with file, line and key.
template <class T>
struct ListOf : std::vector<T> {};
using SeedsByVariant = ListOf<std::pair<std::string, std::vector<int64_t>>>;

using Kind = config::ConfigNode::Kind;

template <class... Parts>
[[noreturn]] void fail(const config::ConfigNode& node, const Parts&... cause) {
  throw UsageError(node.location(), ": ", cause...);
}

// Appends the settings of a mapping. {routing.method: top_k} and {routing: {method: top_k}} are one setting
// each.
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

void read_value(const config::ConfigNode& node, const std::string& key, ListOf<Variant>& variants) {
  if (node.kind != Kind::kMapping || node.keys.empty())
    config::detail::throw_wrong_type(node, key,
                                     "variants by name, each with its settings (name: {key: value})");
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const config::ConfigNode& item = node.items[i];
    if (item.kind != Kind::kMapping && item.kind != Kind::kNull)
      config::detail::throw_wrong_type(item, config::detail::join_key(key, node.keys[i]),
                                       "the variant's settings ({key: value})");
    if (node.keys[i].empty()) fail(item, key + ": a variant needs a name");
    Variant& variant = variants.emplace_back(Variant{node.keys[i], {}});
    append_settings(item, "", variant.settings);
  }
}

void read_value(const config::ConfigNode& node, const std::string& key, ListOf<Axis>& axes) {
  if (node.kind == Kind::kNull) return;
  if (node.kind != Kind::kMapping)
    config::detail::throw_wrong_type(node, key, "keys with their values ({key: [value, value]})");
  std::vector<Setting> settings;
  append_settings(node, "", settings);
  for (Setting& setting : settings) {
    if (setting.value.kind != Kind::kList || setting.value.items.empty())
      config::detail::throw_wrong_type(setting.value, key + "." + setting.key, "a list of values");
    axes.push_back({setting.key, setting.value.items, setting.value.location()});
  }
}

void read_value(const config::ConfigNode& node, const std::string& key, ListOf<AfterCommand>& commands) {
  if (node.kind != Kind::kMapping)
    config::detail::throw_wrong_type(node, key, "commands by name (name: dtopp evaluate images {run} …)");
  for (size_t i = 0; i < node.keys.size(); ++i) {
    const std::string& name = node.keys[i];
    if (name.empty() || name.find_first_of("/ .") != std::string::npos)
      fail(node.items[i],
           key + ": " + config::quote_for_message(name) + " names a file; remove slashes, dots and spaces");
    AfterCommand& command = commands.emplace_back(AfterCommand{name, ""});
    const std::string path = config::detail::join_key(key, name);
    config::detail::read_value(node.items[i], path, command.line);
    if (command.line.find_first_not_of(' ') == std::string::npos)
      fail(node.items[i], path + ": is empty; name a program");
  }
}

void read_value(const config::ConfigNode& node, const std::string& key,
                ListOf<PlannedComparison>& comparisons) {
  if (node.kind != Kind::kList)
    config::detail::throw_wrong_type(node, key,
                                     "a list of comparisons ([{name: …, of: …, less: …, measure: …}])");
  for (const config::ConfigNode& item : node.items) {
    PlannedComparison& planned = comparisons.emplace_back();
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
    auto& [variant, own] = seeds.emplace_back(node.keys[i], std::vector<int64_t>{});
    const std::string path = config::detail::join_key(key, variant);
    config::detail::read_value(node.items[i], path, own);
    if (own.empty()) fail(node.items[i], path + ": is empty; remove the variant instead");
  }
}

struct DefinitionFields {
  std::string base;
  std::vector<int64_t> seeds;
  ListOf<Variant> variants;
  SeedsByVariant only;
  ListOf<Axis> grid, zip;
  std::vector<std::string> measure;
  ListOf<PlannedComparison> compare;
  ListOf<AfterCommand> after;
  std::string ledger;
  std::string output;
};

void visit_fields(config::SectionOf<DefinitionFields> auto& config, auto&& field) {
  field("base", config.base);
  field("seeds", config.seeds);
  field("variants", config.variants);
  field("only", config.only);
  field("grid", config.grid);
  field("zip", config.zip);
  field("measure", config.measure);
  field("compare", config.compare);
  field("after", config.after);
  field("ledger", config.ledger);
  field("output", config.output);
}

// Returns whether one key is the other or one of its sections.
bool overlap(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return b.starts_with(a) && (a.size() == b.size() || b[a.size()] == '.');
}

// The keys that are set and their owners. A key with two owners is an error: one value would silently replace
// the other.
using Claims = std::vector<std::pair<std::string, std::string>>;

void refuse(const Claims& claims, const std::string& key, const std::string& location) {
  for (const auto& [claimed, owner] : claims) {
    if (overlap(key, claimed))
      throw UsageError(location, ": ", key, ": conflicts with the value that ", owner, " sets; remove one");
  }
}

// Expands the grid. The first key of `grid` varies slowest. All keys of `zip` advance together and vary
// fastest.
std::vector<GridPoint> points_of(const std::vector<Axis>& grid, const std::vector<Axis>& zip) {
  std::vector<GridPoint> points(1);
  const auto multiply = [&](size_t count, const auto& add) {
    if (points.size() * count > kMaxStudyRuns)
      throw UsageError("the study's grid has more points than a study may have runs");
    std::vector<GridPoint> more;
    for (const GridPoint& point : points)
      for (size_t i = 0; i < count; ++i) add(more.emplace_back(point), i);
    points = std::move(more);
  };
  for (const Axis& axis : grid) {
    multiply(axis.values.size(), [&](GridPoint& point, size_t i) {
      point.push_back({axis.key, axis.values[i]});
    });
  }
  if (zip.empty()) return points;
  const Axis& first = zip.front();
  for (const Axis& axis : zip) {
    if (axis.values.size() != first.values.size())
      throw UsageError(axis.location, ": zip: ", axis.key, " has ", axis.values.size(), " values and ",
                       first.key, " ", first.values.size(), "; lists of zip must have equal lengths");
  }
  multiply(first.values.size(), [&](GridPoint& point, size_t i) {
    for (const Axis& axis : zip) point.push_back({axis.key, axis.values[i]});
  });
  return points;
}

template <class T>
void require_distinct(const std::vector<T>& values, const std::string& location, const std::string& key) {
  if (std::set<T>(values.begin(), values.end()).size() != values.size())
    throw UsageError(location, ": ", key, ": holds the same entry twice");
}

constexpr std::string_view kVariants = "variants";

bool sets_key(std::string_view argument, std::string_view key) {
  return argument.starts_with(key) && argument.substr(key.size()).starts_with('=');
}

bool is_of_study(const std::string& argument) {
  constexpr std::array<std::string_view, 4> kKeys = {"seeds", "measure", "ledger", "output"};
  return std::ranges::any_of(kKeys, [&](std::string_view key) { return sets_key(argument, key); });
}

// Throws UsageError "location: key: …" if there is no such variant.
Variant& find_variant(std::vector<Variant>& variants, const std::string& name, const std::string& where) {
  const auto found = std::ranges::find(variants, name, &Variant::name);
  if (found != variants.end()) return *found;
  std::vector<std::string> names;
  for (const Variant& variant : variants) names.push_back(variant.name);
  throw UsageError(where, ": no variant is named ", config::quote_for_message(name), "; ",
                   config::suggest(name, names, "the variants are", names));
}

// variants=[a, b]: the others do not run.
void select_variants(std::vector<Variant>& variants, const std::string& argument) {
  config::ConfigNode tree;
  config::apply_override(tree, argument);
  std::vector<std::string> names;
  config::detail::read_value(*tree.find(kVariants), std::string(kVariants), names);
  if (names.empty()) throw UsageError(tree.find(kVariants)->location(), ": names no variant");
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

// Stores the seeds of `only` with their variants. `seeds` are those of the file; an argument may select
// others.
void assign_seeds(DefinitionFields& file, const std::vector<int64_t>& seeds, const std::string& location) {
  const std::string where = location + ": only";
  for (const auto& [name, own] : file.only) {
    find_variant(file.variants, name, where).only = own;
    for (const int64_t seed : own)
      if (std::ranges::find(seeds, seed) == seeds.end())
        throw UsageError(where, ".", name, ": ", seed, " is no seed of the study");
  }
}

void check_comparisons(DefinitionFields& file) {
  std::vector<std::string> names;
  for (const PlannedComparison& planned : file.compare) {
    names.push_back(planned.name);
    const std::string where = planned.location + ": compare: " + config::quote_for_message(planned.name);
    for (const std::string* name : {&planned.of, &planned.less, &planned.over.of, &planned.over.less})
      if (!name->empty()) find_variant(file.variants, *name, where);
    if (std::ranges::find(file.measure, planned.measure) == file.measure.end())
      throw UsageError(where, ": ", planned.measure, " is no measure of the study; add it to measure");
    if (!file.grid.empty() || !file.zip.empty())
      throw UsageError(where, ": a study with a grid or zip has no single difference of two variants");
  }
  if (!names.empty()) require_distinct(names, file.compare.front().location, "compare");
}

void check(const DefinitionFields& file, const config::ConfigNode& tree) {
  const auto require = [&](bool is_there, const char* key, const char* what) {
    if (!is_there) throw UsageError(config::location_of(tree, key), ": ", key, ": ", what);
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
      throw UsageError(node->location(), ": ", key,
                       ": belongs to the configuration of a run, not to a study; use dtopp train");
  }
}

Claims claims_of(const DefinitionFields& file) {
  Claims claims;
  for (const char* key : {"training.seed", "output", "name"}) claims.emplace_back(key, "the study itself");
  for (const auto& [owner, axes] : {std::pair("grid", &file.grid), std::pair("zip", &file.zip)}) {
    for (const Axis& axis : *axes) {
      refuse(claims, axis.key, axis.location);
      claims.emplace_back(axis.key, owner);
    }
  }
  Claims all = claims;
  for (const Variant& variant : file.variants) {
    Claims own = claims;
    for (const Setting& setting : variant.settings) {
      refuse(own, setting.key, setting.value.location());
      all.push_back(own.emplace_back(setting.key, "variant " + variant.name));
    }
  }
  return all;
}

constexpr size_t kLongestName = 100;

// Makes `raw` safe as part of a file name. A name that was changed or truncated ends with a checksum of
// `raw`.
std::string safe_name(const std::string& raw) {
  std::string name = raw.substr(0, kLongestName);
  for (char& c : name) c = is_plain(c) ? c : '_';
  if (name.front() == '.' || name.front() == '-') name.front() = '_';
  return name == raw ? name : name + "-" + hash_bytes(std::as_bytes(std::span(raw))).substr(0, kShortHash);
}

std::string name_of(const Variant& variant, const GridPoint& point) {
  std::string name = variant.name;
  for (const Setting& setting : point) {
    const std::string text = to_text(setting.value);
    name += "-" + setting.key.substr(setting.key.rfind('.') + 1) + "-" + text;
  }
  return safe_name(name);
}

bool is_measured(const std::string& key) {
  return config::affects_result(key) || key == "data.validation" || key.starts_with("validation.");
}

config::RunConfig resolve(const Study& study, size_t variant, size_t point) {
  config::ConfigNode tree = study.base;
  std::vector<Setting> settings = study.points[point];
  const auto& own = study.variants[variant].settings;
  settings.insert(settings.end(), own.begin(), own.end());
  // A method must not replace the values of other settings or arguments.
  const auto is_method = [](const Setting& setting) { return setting.key == "method"; };
  for (const Setting& setting : settings)
    if (is_method(setting)) config::set_value(tree, setting.key, setting.value);
  config::apply_overrides(tree, study.overrides);
  for (const Setting& setting : settings)
    if (!is_method(setting)) config::set_value(tree, setting.key, setting.value);
  config::ConfigNode output;
  output.kind = Kind::kScalar;
  output.text = study.output.string();
  config::set_value(tree, "output", output);  // expand() replaces it; the base may lack this required key
  return config::run_config_of(tree);
}

// Checks a measure of validation, such as "val/books/loss".
void check_held_out_measure(const std::string& measure, const std::string& location,
                            const config::DataConfig& data) {
  if (measure == "val/mixture_loss" && data.mixture_shares().empty())
    throw UsageError(location,
                     "needs weights in data.train, and a source in data.validation with the name of each of "
                     "its sources");
  constexpr size_t kPrefix = std::string_view("val/").size();
  const size_t end = measure.find('/', kPrefix);
  if (end == std::string::npos) return;
  const std::string source = measure.substr(kPrefix, end - kPrefix);
  if (source.starts_with("layer_")) return;
  const auto names =
      data.validates_by_source() ? config::source_names(data.validation) : std::vector<std::string>();
  if (std::ranges::find(names, source) == names.end())
    throw UsageError(location, "no source of data.validation has the name ", source);
}

void check_measures(const Study& study, const config::RunConfig& config) {
  const bool validates = config.validation.every > 0;
  for (const std::string& measure : study.measures) {
    const std::string location = study.file.string() + ": measure: " + measure + ": ";
    if (measure.starts_with("val/") && (!validates || config.data.validation.empty()))
      throw UsageError(location, "the runs do not validate; set data.validation and validation.every");
    if (measure.starts_with("val/")) check_held_out_measure(measure, location, config.data);
    if (measure.starts_with("eval/") && (!validates || config.validation.tasks.empty()))
      throw UsageError(location, "the runs evaluate no tasks; set validation.tasks and validation.every");
  }
}

template <class Number>
bool reads_as(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

nlohmann::ordered_json json_of(const config::ConfigNode& value) {
  if (value.kind == Kind::kNull) return nullptr;
  if (value.kind == Kind::kList) {
    auto list = nlohmann::ordered_json::array();
    for (const config::ConfigNode& item : value.items) list.push_back(json_of(item));
    return list;
  }
  if (!value.quoted) {
    int64_t integer = 0;
    double number = 0;
    if (reads_as(value.text, integer)) return integer;
    if (reads_as(value.text, number)) return number;
    if (value.text == "true" || value.text == "false") return value.text == "true";
  }
  return value.text;
}

}  // namespace

Study load_study(const fs::path& file, const std::vector<std::string>& arguments) {
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
  std::vector<Variant>& variants = fields.variants;
  if (variants.empty()) variants.push_back({"base", {}});
  assign_seeds(fields, seeds_of_file, config::location_of(tree, "only"));
  fs::path ledger = fields.ledger;
  if (!ledger.empty() && !ledger_is_argument) ledger = (file.parent_path() / ledger).lexically_normal();
  check(fields, tree);
  check_comparisons(fields);
  for (const std::string& argument : arguments) {
    if (sets_key(argument, kVariants)) select_variants(variants, argument);
    if (argument.starts_with("variants.")) set_in_variant(variants, argument);
  }
  const Claims claims = claims_of(fields);
  const std::string base_location = config::location_of(tree, "base") + ": base: ";
  config::ConfigNode base =
      config::load_config_tree((file.parent_path() / fields.base).lexically_normal(), base_location);
  std::vector<std::string> overrides = arguments;
  std::erase_if(overrides, [](const std::string& argument) {
    return is_of_study(argument) || sets_key(argument, kVariants) || argument.starts_with("variants.");
  });
  config::apply_overrides(base, overrides);
  for (const std::string& argument : overrides)
    refuse(claims, argument.substr(0, argument.find('=')), "argument " + config::quote_for_message(argument));
  return {file,
          std::move(base),
          std::move(overrides),
          fields.seeds,
          std::move(variants),
          points_of(fields.grid, fields.zip),
          fields.measure,
          std::move(fields.compare),
          std::move(fields.after),
          ledger,
          fields.output};
}

std::string to_text(const config::ConfigNode& value) {
  if (value.kind != Kind::kList) return value.text;
  std::string text;
  for (const config::ConfigNode& item : value.items) text += (text.empty() ? "" : ", ") + to_text(item);
  return "[" + text + "]";
}

nlohmann::ordered_json to_json(const GridPoint& point) {
  auto json = nlohmann::ordered_json::object();
  for (const Setting& setting : point) json[setting.key] = json_of(setting.value);
  return json;
}

// Values that are defaults are left out, so that results stay valid when a later version adds a key.
std::string hash_of(const config::RunConfig& config) {
  const auto defaults = config::flatten_config(config::RunConfig());
  std::string text;
  for (const auto& [key, value] : config::flatten_config(config))
    if (is_measured(key) && std::ranges::count(defaults, std::pair(key, value)) == 0)
      text.append(key).append(": ").append(value).append("\n");
  return hash_bytes(std::as_bytes(std::span(text)));
}

std::vector<std::string> changed_keys(const config::RunConfig& before, const config::RunConfig& now) {
  std::vector<std::string> keys = config::differing_keys(now, before);
  std::erase_if(keys, [](const std::string& key) { return !is_measured(key); });
  return keys;
}

std::vector<StudyRun> expand(const Study& study) {
  std::vector<StudyRun> first;
  std::map<std::string, std::string> variant_of;  // by run name
  for (size_t point = 0; point < study.points.size(); ++point) {
    for (size_t variant = 0; variant < study.variants.size(); ++variant) {
      StudyRun& run = first.emplace_back(StudyRun{.variant = variant, .point = point});
      run.config = resolve(study, variant, point);
      run.selected = study.variants[variant].runs;
      check_measures(study, run.config);
      run.name = name_of(study.variants[variant], study.points[point]);
      const auto [other, is_new] = variant_of.emplace(run.name, study.variants[variant].name);
      if (!is_new)
        throw UsageError(study.file, ": runs of variants ", config::quote_for_message(other->second), " and ",
                         config::quote_for_message(study.variants[variant].name), " would share the folder ",
                         run.name, "-seedN; rename one");
    }
  }
  std::vector<int64_t> seeds = study.seeds;
  if (seeds.empty()) seeds.push_back(first.front().config.training.seed);
  if (first.size() * seeds.size() > kMaxStudyRuns)
    throw UsageError(study.file, ": more than ", kMaxStudyRuns, " runs");
  std::vector<StudyRun> runs;
  for (const int64_t seed : seeds) {
    for (StudyRun run : first) {
      const std::vector<int64_t>& only = study.variants[run.variant].only;
      if (!only.empty() && std::ranges::find(only, seed) == only.end()) continue;
      run.seed = seed;
      run.name += "-seed" + std::to_string(seed);
      run.directory = study.output / "runs" / run.name;
      run.config.training.seed = seed;
      run.config.name = run.name;
      run.config.output = run.directory.string();
      run.hash = hash_of(run.config);
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

}  // namespace dtopp::study

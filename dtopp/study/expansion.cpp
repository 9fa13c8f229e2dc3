#include "dtopp/study/expansion.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"
#include "dtopp/config/config.h"

namespace dtopp::study {
namespace {

using Kind = config::ConfigNode::Kind;

constexpr size_t kLongestName = 100;

std::string hash_text(const std::string& text) {
  return hash_bytes(std::as_bytes(std::span(text.data(), text.size())));
}

bool is_safe(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_.").find(c) != std::string_view::npos;
}

// Makes `raw` safe as part of a file name. A name that was changed or truncated ends with a checksum of
// `raw`.
std::string safe_name(const std::string& raw) {
  std::string name = raw.substr(0, kLongestName);
  for (char& c : name) c = is_safe(c) ? c : '_';
  if (name.front() == '.' || name.front() == '-') name.front() = '_';
  return name == raw ? name : name + "-" + hash_text(raw).substr(0, kShortHash);
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
    throw UsageError(location +
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
    throw UsageError(location + "no source of data.validation has the name " + source);
}

void check_measures(const Study& study, const config::RunConfig& config) {
  const bool validates = config.validation.every > 0;
  for (const std::string& measure : study.measures) {
    const std::string location = study.file.string() + ": measure: " + measure + ": ";
    if (measure.starts_with("val/") && (!validates || config.data.validation.empty()))
      throw UsageError(location + "the runs do not validate; set data.validation and validation.every");
    if (measure.starts_with("val/")) check_held_out_measure(measure, location, config.data);
    if (measure.starts_with("eval/") && (!validates || config.validation.tasks.empty()))
      throw UsageError(location + "the runs evaluate no tasks; set validation.tasks and validation.every");
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
  std::vector<std::pair<std::string, std::string>> leaves, defaults;
  config::flatten_config(config, "", leaves);
  config::flatten_config(config::RunConfig(), "", defaults);
  const std::set<std::pair<std::string, std::string>> left_out(defaults.begin(), defaults.end());
  std::string text;
  for (const auto& [key, value] : leaves) {
    if (is_measured(key) && !left_out.contains({key, value}))
      text.append(key).append(": ").append(value).append("\n");
  }
  return hash_text(text);
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
        throw UsageError(study.file.string() + ": runs of variants " +
                         config::quote_for_message(other->second) + " and " +
                         config::quote_for_message(study.variants[variant].name) +
                         " would share the folder " + run.name + "-seedN; rename one");
    }
  }
  std::vector<int64_t> seeds = study.seeds;
  if (seeds.empty()) seeds.push_back(first.front().config.training.seed);
  if (first.size() * seeds.size() > kMaxStudyRuns)
    throw UsageError(study.file.string() + ": more than " + std::to_string(kMaxStudyRuns) + " runs");
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

// Reads the definition of a study from its YAML file: its runs and the measures to compare.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dtopp/config/config.h"
#include "dtopp/config/config_tree.h"
#include "dtopp/config/run_config.h"

namespace dtopp::study {
// A value for one key of a run's configuration ("model.num_experts").
struct Setting {
  std::string key;
  config::ConfigNode value;
};

struct Variant {
  std::string name;
  std::vector<Setting> settings;
  std::vector<int64_t> only{};  // its seeds; empty: all seeds of the study
  bool runs = true;             // false: the argument variants= leaves it out
};

// The variants of a difference: `of` minus `less`.
struct VariantPair {
  std::string of, less;
};

// A comparison that the study plans before its runs, paired by seed.
struct PlannedComparison {
  std::string name, of, less;
  VariantPair over{};  // given: the result is the ratio of the two differences
  std::string measure;
  double margin = 0;       // "equivalent" if the interval lies within ± margin; 0: not asked
  double excluded = 0;     // a lead that the interval may exclude; 0: not asked
  std::string family{};    // comparisons with the same family share Holm's correction; empty: no verdict
  std::string location{};  // for messages

  bool is_ratio() const { return !over.of.empty(); }
};

// A command that runs once after each finished run. Its result, a JSON file, holds values to compare.
//
// `line` is split at spaces: "dtopp evaluate images {run} --output {result}". {run} is the run's folder and
// {result} the command's result file. The program dtopp is this one.
struct AfterCommand {
  std::string name;
  std::string line;
};

// One value per key of `grid` and `zip`, in the order of the file; empty if the study has neither.
using GridPoint = std::vector<Setting>;

inline constexpr size_t kMaxStudyRuns = 10000;

struct Study {
  fs::path file;
  config::ConfigNode base;             // configuration that all runs share, with overrides applied
  std::vector<std::string> overrides;  // key=value arguments, which win over the method of a variant
  std::vector<int64_t> seeds;          // empty: the seed of the base
  std::vector<Variant> variants;       // the first is the baseline
  std::vector<GridPoint> points;       // a single empty point if the study has no grid
  // Metrics of metrics.jsonl, or COMMAND/KEY: the number at KEY (a JSON pointer) in a command's result.
  std::vector<std::string> measures;
  std::vector<PlannedComparison> compare;
  std::vector<AfterCommand> after;
  fs::path ledger;  // empty: none
  fs::path output;
};

// Reads `file` and applies `arguments` (key=value).
//
// The arguments seeds, measure, ledger and output replace the values of the file. variants=[NAME, …] trains
// these variants alone. variants.NAME.key=value sets a key of one variant. All others override the base
// configuration. A ledger's path in the file is relative to the file.
//
// Throws: UsageError, with file, line and key, if a value is missing, unknown or of the wrong kind, or if two
//         of the grid, a variant and an argument set the same key
Study load_study(const fs::path& file, const std::vector<std::string>& arguments);

// The keys of one entry of `compare`.
void visit_fields(config::SectionOf<VariantPair> auto& config, auto&& field) {
  field("of", config.of);
  field("less", config.less);
}
void visit_fields(config::SectionOf<PlannedComparison> auto& config, auto&& field) {
  field("name", config.name);
  field("of", config.of);
  field("less", config.less);
  field("over", config.over);
  field("measure", config.measure);
  field("margin", config.margin);
  field("excluded", config.excluded);
  field("family", config.family);
}

// A variant at a grid point with a seed.
struct StudyRun {
  size_t variant = 0;  // index into Study::variants
  size_t point = 0;    // index into Study::points
  int64_t seed = 0;
  std::string name{};          // VARIANT[-GRID]-seedN, safe as a file name
  fs::path directory{};        // OUTPUT/runs/NAME
  config::RunConfig config{};  // its `name` and `output` are `name` and `directory`
  std::string hash{};          // hash_of(config)
  bool selected = true;        // false: not to be trained now (Variant::runs)
};

// Returns the runs in execution order: all variants and grid points of the first seed come first.
//
// Throws: UsageError, with the study's file and line, if a configuration is invalid (an unknown key is
//         reported with the nearest known one) or if a run would not write a measure (val/… without
//         validation)
std::vector<StudyRun> expand(const Study& study);

// Returns a checksum of the keys that affect a run's result or its validation. Other keys may change without
// making it another run: name, output, threads, checkpoints, … (affects_result).
std::string hash_of(const config::RunConfig& config);
inline constexpr size_t kShortHash = 8;  // checksum digits in a folder's name

// Returns the keys whose values differ, among those that hash_of includes.
std::vector<std::string> changed_keys(const config::RunConfig& before, const config::RunConfig& now);

// Returns, for example, {"model.num_experts": 16}.
nlohmann::ordered_json to_json(const GridPoint& point);

// Formats a value for display: "16", "top_k", "[3, 4]".
std::string to_text(const config::ConfigNode& value);

}  // namespace dtopp::study

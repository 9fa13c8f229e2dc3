// Reads the definition of a study from its YAML file: its runs and the measures to compare.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dtopp/config/config_tree.h"

namespace dtopp::study {

// A value for one key of a run's configuration ("model.num_experts").
struct Setting {
  std::string key;
  config::ConfigNode value;
};

struct Variant {
  std::string name;
  std::vector<Setting> settings;
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
  std::filesystem::path file;
  config::ConfigNode base;             // configuration that all runs share, with overrides applied
  std::vector<std::string> overrides;  // key=value arguments, which win over the method of a variant
  std::vector<int64_t> seeds;          // empty: the seed of the base
  std::vector<Variant> variants;       // the first is the baseline
  std::vector<GridPoint> points;       // a single empty point if the study has no grid
  // Metrics of metrics.jsonl, or COMMAND/KEY: the number at KEY (a JSON pointer) in a command's result.
  std::vector<std::string> measures;
  std::vector<AfterCommand> after;
  std::filesystem::path output;
};

// Reads `file` and applies `arguments` (key=value).
//
// The arguments seeds, measure and output replace the values of the file. All others override the base
// configuration.
//
// Throws: UsageError, with file, line and key, if a value is missing, unknown or of the wrong kind, or if two
//         of the grid, a variant and an argument set the same key
Study load_study(const std::filesystem::path& file, const std::vector<std::string>& arguments);

}  // namespace dtopp::study

// Reads the definition of a study from its YAML file: its runs and the measures to compare.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dtopp/config/config_tree.h"

namespace dtopp {

// A value for one key of a run's configuration ("model.num_experts").
struct Setting {
  std::string key;
  ConfigNode value;
};

struct Variant {
  std::string name;
  std::vector<Setting> settings;
};

// One value per key of `grid` and `zip`, in the order of the file; empty if the study has neither.
using GridPoint = std::vector<Setting>;

inline constexpr size_t kMaxStudyRuns = 10000;

struct Study {
  std::filesystem::path file;
  ConfigNode base;                     // configuration that all runs share, with overrides applied
  std::vector<std::string> overrides;  // key=value arguments, which win over the method of a variant
  std::vector<int64_t> seeds;          // empty: the seed of the base
  std::vector<Variant> variants;       // the first is the baseline
  std::vector<GridPoint> points;       // a single empty point if the study has no grid
  std::vector<std::string> measures;   // metric names of metrics.jsonl
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

}  // namespace dtopp

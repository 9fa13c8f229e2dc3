// A study as its YAML file defines it: which runs, and what is measured of each.
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

// One value for each key of `grid` and `zip`, in the file's order; empty where there are none.
using GridPoint = std::vector<Setting>;

inline constexpr size_t kMaxStudyRuns = 10000;

struct Study {
  std::filesystem::path file;
  ConfigNode base;                    // the configuration that all runs share, arguments laid over it
  std::vector<int64_t> seeds;         // empty: the base's own
  std::vector<Variant> variants;      // the first is the baseline
  std::vector<GridPoint> points;      // one without settings where the study has no grid
  std::vector<std::string> measures;  // names of metrics.jsonl
  std::filesystem::path output;
};

// Reads `file`. Of `arguments` (key=value) those for seeds, measure and output replace what it says, all
// others are laid over the base. UsageError, naming file, line and key, where something is missing, unknown,
// of the wrong kind, or set twice: by a variant and the grid, or by an argument and one of them.
Study load_study(const std::filesystem::path& file, const std::vector<std::string>& arguments);

}  // namespace dtopp

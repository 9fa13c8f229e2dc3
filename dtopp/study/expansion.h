// The runs of a study: every variant at every grid point with every seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/config/run_config.h"
#include "dtopp/study/definition.h"

namespace dtopp {

struct StudyRun {
  size_t variant = 0;  // of Study::variants
  size_t point = 0;    // of Study::points
  int64_t seed = 0;
  std::string name{};                 // VARIANT[-GRID]-seedN, made safe for a file's name
  std::filesystem::path directory{};  // OUTPUT/runs/NAME
  RunConfig config{};                 // `name` and `output` are the two above
  std::string hash{};                 // hash_of(config)
};

// In the order to run them in: all variants and grid points of the first seed first. Every configuration is
// checked: UsageError that names the study's file and line where one cannot be, with the nearest key for one
// that no configuration has; also where a measure would not be written (val/… without validation).
std::vector<StudyRun> expand(const Study& study);

// A checksum of what decides on a run's result and what is validated. Other keys (name, output, threads,
// checkpoints, …: affects_result) may change and the run stays the same.
std::string hash_of(const RunConfig& config);
inline constexpr size_t kShortHash = 8;  // digits of a checksum in a folder's name

// The keys that hash_of sees and whose values differ.
std::vector<std::string> changed_keys(const RunConfig& before, const RunConfig& now);

// {"model.num_experts": 16}
nlohmann::ordered_json to_json(const GridPoint& point);

// A value as a person reads it: "16", "top_k", "[3, 4]".
std::string to_text(const ConfigNode& value);

}  // namespace dtopp

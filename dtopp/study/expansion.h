// Expands a study into its runs: every variant at every grid point with every seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/config/run_config.h"
#include "dtopp/study/definition.h"

namespace dtopp::study {

struct StudyRun {
  size_t variant = 0;  // index into Study::variants
  size_t point = 0;    // index into Study::points
  int64_t seed = 0;
  std::string name{};                 // VARIANT[-GRID]-seedN, safe as a file name
  std::filesystem::path directory{};  // OUTPUT/runs/NAME
  config::RunConfig config{};         // its `name` and `output` are `name` and `directory`
  std::string hash{};                 // hash_of(config)
  bool selected = true;               // false: not to be trained now (Variant::runs)
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

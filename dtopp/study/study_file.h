// study.json as a report reads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dtopp {

// A number of study.json: none where it could not be computed.
struct StudyValue {
  std::optional<double> mean, half_width, p, p_holm;
};
struct StudyRow {
  std::string name;  // variant and grid point; where another study has the same, its path too
  int64_t n = 0;
  std::map<std::string, StudyValue> values, differences;  // by measure
  std::vector<std::string> notes;                         // why something could not be computed
};

// A measure over training: its mean over a row's seeds, with the half-widths of its intervals (NaN: none).
struct StudyCurve {
  std::string row, measure, axis;  // "tokens", "active_flops", "seconds"
  size_t n = 0;                    // seeds
  std::vector<double> x, mean, half_width;
};

// Whether `path` is a study's folder, or its study.json.
bool is_study(const std::filesystem::path& path);

struct StudyFile {
  struct Run {
    std::filesystem::path path;
    std::string row;   // StudyRow::name
    std::string hash;  // of its configuration; empty: done or failed, so that the folder is known to hold it
  };
  std::vector<Run> runs;
  std::vector<StudyRow> rows;
  std::vector<StudyCurve> curves;           // of the curves.json beside it, where there is one
  std::map<std::string, size_t> by_status;  // "done", "failed", "pending"
};
// DataError naming the file where it is not what a study writes.
StudyFile read_study_file(const std::filesystem::path& path);

}  // namespace dtopp

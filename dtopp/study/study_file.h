// Reads study.json and curves.json for a report.
#pragma once

#include "dtopp/study/statistics.h"

namespace dtopp::study {

struct StudyRow {
  std::string name;  // variant and grid point; with the study's path if two studies have the same
  int64_t n = 0;
  std::map<std::string, Comparison> measures;
  std::vector<std::string> notes;  // reasons for missing numbers
};

// A measure during training: its mean over the seeds of a row with half-widths of the intervals (NaN: none).
struct StudyCurve {
  std::string row, measure, axis;  // "tokens", "active_flops", "seconds"
  size_t n = 0;                    // number of seeds
  std::vector<double> x, mean, half_width;
};

// `path` is the folder of a study, or its study.json.
bool is_study(const std::filesystem::path& path);

struct StudyFile {
  struct Run {
    std::filesystem::path path;
    std::string row;  // StudyRow::name
    // Checksum of a pending run's configuration, to check that the folder holds this run. Empty for a done or
    // failed run, whose folder does.
    std::string hash;
  };
  std::vector<Run> runs;
  std::vector<StudyRow> rows;
  std::vector<StudyCurve> curves;           // from the curves.json beside it, if it exists
  std::map<std::string, size_t> by_status;  // "done", "failed", "pending"
};
// Reads the files of a study. Throws DataError with the file's name if its content is not that of a study.
StudyFile read_study_file(const std::filesystem::path& path);

}  // namespace dtopp::study

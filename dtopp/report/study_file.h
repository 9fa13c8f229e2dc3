// study.json as a report reads it.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "dtopp/report/input.h"

namespace dtopp {

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

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
  std::vector<std::filesystem::path> runs;
  std::vector<StudyRow> rows;
  std::map<std::string, size_t> by_status;  // "done", "failed", "pending"
};
// DataError naming the file where it is not what a study writes.
StudyFile read_study_file(const std::filesystem::path& path);

}  // namespace dtopp

// What a report is made of: runs with their metrics and what was measured on them, and a study's table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/config/run_config.h"
#include "dtopp/runs/run_history.h"
#include "dtopp/study/study_file.h"
#include "dtopp/study/token_cost.h"
#include "dtopp/tasks/evaluation_files.h"

namespace dtopp {

// What `dtopp plan` says of a run.
struct PlannedCost {
  TokenCost token;
  double memory_bytes = 0;  // of one process at its peak
};
using FindCost = std::function<std::optional<PlannedCost>(const RunConfig&)>;

struct ReportRun {
  std::string name;  // unlike all others
  std::filesystem::path path;
  RunConfig config;
  RunHistory history;
  Evaluations evaluations;
  std::optional<PlannedCost> cost;
  std::string study_row;  // of a study's run: StudyRow::name
};

// Runs that differ in their seeds alone.
struct RunGroup {
  std::string name;
  std::vector<size_t> runs;
};

struct ReportInput {
  std::string title;
  std::vector<ReportRun> runs;
  std::vector<std::filesystem::path> folders;  // of runs, also of those that cannot be taken yet
  std::vector<RunGroup> groups;                // every run is in one
  std::vector<StudyCurve> curves;
  std::vector<StudyRow> study;               // empty: no study
  std::map<std::string, size_t> study_runs;  // by status
};

// Of folders of runs and of studies (those that hold a study.json, whose runs that have metrics are taken,
// but those of another configuration than the study gives them now). UsageError where there is no such run or
// study, DataError where metrics or another file is damaged.
ReportInput read_report_input(const std::vector<std::filesystem::path>& paths, const FindCost& find_cost);

}  // namespace dtopp

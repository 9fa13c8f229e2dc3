// Reads the input of a report: runs with their metrics and evaluations, and the tables of studies.
#pragma once

#include "dtopp/config/run_config.h"
#include "dtopp/runs/run_history.h"
#include "dtopp/study/study_file.h"
#include "dtopp/tasks/evaluation_files.h"

namespace dtopp::report {
// Returns the peak memory of one process of a run that `dtopp plan` estimates, in bytes.
using FindCost = std::optional<double> (*)(const config::RunConfig&);

// The newest file in a run's samples/: texts or a grid of pictures.
struct Samples {
  std::filesystem::path file;
  int64_t step = 0;
  std::vector<std::string> texts = {};  // each an opening, " | " and its continuation
  std::string png{};                    // the grid; empty: none, or too large for a page
};

struct ReportRun {
  std::string name;  // unique in the report
  std::filesystem::path path;
  config::RunConfig config;
  runs::RunHistory history;
  tasks::Evaluations evaluations;
  std::optional<double> planned_bytes;
  std::optional<Samples> samples;
  std::string study_row;  // StudyRow::name if a study made the run, else empty
};

// Runs that differ only in their seed.
struct RunGroup {
  std::string name;
  std::vector<size_t> runs;
};

struct ReportInput {
  std::string title;
  std::vector<ReportRun> runs;
  std::vector<std::filesystem::path> folders;  // folders of runs, including those without metrics yet
  std::vector<RunGroup> groups;                // every run belongs to exactly one
  std::vector<study::StudyCurve> curves;
  std::vector<study::StudyRow> study;        // empty: no study
  std::map<std::string, size_t> study_runs;  // number of runs by status
};

// Reads folders of runs and of studies.
//
// A folder with a study.json is a study. Its runs are read if they have metrics and the configuration that
// the study defines now.
//
// Throws: UsageError if a path is neither a run nor a study, or if there is no run to report; DataError if a
//         file is damaged
ReportInput read_report_input(const std::vector<std::filesystem::path>& paths, const FindCost& find_cost);

}  // namespace dtopp::report

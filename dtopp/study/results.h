// Computes the results of a study: one value per run and measure; means, intervals and differences from the
// baseline over seeds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/runs/run_history.h"
#include "dtopp/study/expansion.h"
#include "dtopp/study/run_folder.h"
#include "dtopp/study/statistics.h"

namespace dtopp {

// Returns the value of a measure for a run.
//
// For val/… and eval/…, which are measured at intervals, it is the last value. For every other measure, which
// each step logs, it is the mean over the last tenth of the values.
//
// Returns: NaN if one of these values is NaN; nullopt if the run has no value
std::optional<double> value_of_run(const RunHistory& history, const std::string& measure);

struct Comparison {
  PairedDifference difference{};
  std::optional<double> p_holm{};  // p, adjusted for all comparisons of this measure
};

// A variant at a grid point, over its seeds.
struct TableRow {
  size_t variant = 0, point = 0;
  int64_t n = 0;                          // number of done runs
  std::vector<Interval> values{};         // by measure
  std::vector<Comparison> differences{};  // by measure; empty in the baseline's row
  std::vector<std::string> notes{};       // reasons for missing numbers
};

struct StudyResults {
  // By run, then measure; nullopt for a run that is not done.
  std::vector<std::vector<std::optional<double>>> values{};
  std::vector<TableRow> rows{};  // by grid point, then variant; the baseline comes first
};

// Reads the results of done runs. The values of each run are read once and cached.
class ResultsReader {
 public:
  ResultsReader(const Study& study, const std::vector<StudyRun>& runs) : study_(study), runs_(runs) {}
  // Throws DataError if the metrics of a done run cannot be read.
  StudyResults read(const std::vector<RunRecord>& records);

 private:
  const Study& study_;
  const std::vector<StudyRun>& runs_;
  std::map<size_t, std::vector<std::optional<double>>> known_;  // by run
};

// Computes the table from the values of the runs.
std::vector<TableRow> make_rows(const Study& study, const std::vector<StudyRun>& runs,
                                const std::vector<RunRecord>& records,
                                const std::vector<std::vector<std::optional<double>>>& values);

}  // namespace dtopp

// What the runs of a study came to: a value a run and measure, and over seeds means, intervals and
// differences from the baseline.
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

// The last value of val/… and eval/…, which are measured now and then; of all else, which every step has, the
// mean of the last tenth of the values. NaN where one of those is; nullopt where the run has none.
std::optional<double> value_of_run(const RunHistory& history, const std::string& measure);

struct Comparison {
  PairedDifference difference{};
  std::optional<double> p_holm{};  // adjusted over all comparisons of this measure
};

// A variant at a grid point, over its seeds.
struct TableRow {
  size_t variant = 0, point = 0;
  int64_t n = 0;                          // runs done
  std::vector<Interval> values{};         // by measure
  std::vector<Comparison> differences{};  // by measure; none in the baseline's row
  std::vector<std::string> notes{};       // why something is missing
};

struct StudyResults {
  // By run, then measure; none of a run that is not done.
  std::vector<std::vector<std::optional<double>>> values{};
  std::vector<TableRow> rows{};  // grid points in their order, the baseline first in each
};

// Of done runs, whose values are read once.
class ResultsReader {
 public:
  ResultsReader(const Study& study, const std::vector<StudyRun>& runs) : study_(study), runs_(runs) {}
  // DataError where a done run's metrics cannot be read.
  StudyResults read(const std::vector<RunRecord>& records);

 private:
  const Study& study_;
  const std::vector<StudyRun>& runs_;
  std::map<size_t, std::vector<std::optional<double>>> known_;  // by run
};

// The table of values that are known.
std::vector<TableRow> make_rows(const Study& study, const std::vector<StudyRun>& runs,
                                const std::vector<RunRecord>& records,
                                const std::vector<std::vector<std::optional<double>>>& values);

}  // namespace dtopp

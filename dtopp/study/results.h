// Computes the results of a study: one value per run and measure; means, intervals and differences from the
// baseline over seeds.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dtopp/study/comparison.h"
#include "dtopp/study/expansion.h"
#include "dtopp/study/run_folder.h"
#include "dtopp/study/verdicts.h"

namespace dtopp::study {

// A variant at a grid point, over its seeds.
struct TableRow {
  size_t variant = 0, point = 0;
  int64_t n = 0;  // number of done runs
  std::vector<Comparison> measures{};
  std::vector<std::string> notes{};  // reasons for missing numbers
};

struct StudyResults {
  std::vector<std::vector<RunValue>> values{};  // by run, then measure; none for a run that is not done
  std::vector<TableRow> rows{};                 // by grid point, then variant; the baseline comes first
  std::vector<ComparisonResult> comparisons{};  // the study's planned ones, then `together`
};

// Reads the results of done runs. The values of each run are read once and cached.
class ResultsReader {
 public:
  ResultsReader(const Study& study, const std::vector<StudyRun>& runs) : study_(study), runs_(runs) {}
  // Sets the values of a run, which are then not read from its folder.
  void set(size_t run, std::vector<RunValue> values) { given_[run] = std::move(values); }
  // `together` are comparisons of other studies, which share families with those of this study.
  //
  // Throws DataError if the metrics of a done run cannot be read.
  StudyResults read(const std::vector<RunRecord>& records,
                    const std::vector<ComparisonResult>& together = {});

 private:
  const Study& study_;
  const std::vector<StudyRun>& runs_;
  // By run: the number of commands that had succeeded after it, and its values then.
  std::map<size_t, std::pair<size_t, std::vector<RunValue>>> known_;
  std::map<size_t, std::vector<RunValue>> given_;
};

// Computes the table from the values of the runs.
std::vector<TableRow> make_rows(const Study& study, const std::vector<StudyRun>& runs,
                                const std::vector<RunRecord>& records,
                                const std::vector<std::vector<RunValue>>& values);

}  // namespace dtopp::study

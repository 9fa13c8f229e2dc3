// Computes the results of a study: one value per run and measure; means, intervals and differences from the
// baseline over seeds.
#pragma once

#include "dtopp/study/definition.h"
#include "dtopp/study/run_folder.h"
#include "dtopp/study/statistics.h"

namespace dtopp::study {
// Computes the planned comparisons of a study, and decides them by rules that are fixed before its runs.
//
// A positive difference of `of` minus `less` in a loss means that `less` is ahead.

struct ComparisonResult {
  PlannedComparison planned;
  PairedDifference difference{};        // of a plain comparison
  std::optional<double> t{}, p_holm{};  // p_holm only with a family
  RatioInterval ratio{};                // of a ratio
  // For each comparison of a family:
  //   "LESS ahead of OF"        the 95 % interval lies above 0, and p_holm is at most 0.05
  //   "LESS behind OF"          the interval lies below 0, and p_holm is at most 0.05
  //   "equivalent within M"     the interval lies within ± margin
  //   "a lead of X is excluded" the interval lies below `excluded`
  //   "inconclusive"            none of these
  std::vector<std::string> verdicts{};
  std::string note{};  // reason for a missing number
};

using RunValues = std::vector<std::vector<RunValue>>;  // by run, then measure

// Computes the differences and ratios from the values of the runs. Runs that are not done or have no value
// are left out with their pairs.
std::vector<ComparisonResult> compute_comparisons(const Study& study, const std::vector<StudyRun>& runs,
                                                  const std::vector<RunRecord>& records,
                                                  const RunValues& values);

// Sets p_holm and the verdicts. Comparisons with the same family share one correction. A comparison of a
// family that has no p yet counts as p = 1, so that a part of a study does not look more certain than the
// whole.
void decide(std::vector<ComparisonResult>& results);

// Returns a Markdown table of the comparisons; empty if there are none.
std::string comparison_table(const std::vector<ComparisonResult>& results);

// Returns one line per plain comparison with its n and the standard deviation of its differences, and nothing
// about their sign or size.
std::string blind_text(const std::vector<ComparisonResult>& results);

// A variant at a grid point, over its seeds.
struct TableRow {
  size_t variant = 0, point = 0;
  int64_t n = 0;  // number of done runs
  std::vector<Comparison> measures{};
  std::vector<std::string> notes{};  // reasons for missing numbers
};

struct StudyResults {
  RunValues values{};                           // none for a run that is not done
  std::vector<TableRow> rows{};                 // by grid point, then variant; the baseline comes first
  std::vector<ComparisonResult> comparisons{};  // the study's planned ones, then `together`
};

// Reads the results of done runs. The values of each run are read once and cached.
class ResultsReader {
 public:
  ResultsReader(const Study& study, const std::vector<StudyRun>& runs) : study_(study), runs_(runs) {}
  // Sets the values of a complete run, which are then not read from its folder.
  void set(size_t run, std::vector<RunValue> values) {
    known_[run] = {study_.after.size(), std::move(values)};
  }
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
};

std::vector<TableRow> make_rows(const Study& study, const std::vector<StudyRun>& runs,
                                const std::vector<RunRecord>& records, const RunValues& values);

// Formats the table of a study as Markdown, CSV and LaTeX.
//
// The table has one row per variant and grid point. Each measure has a column of mean ± half-width (95 %
// interval). With several variants it also has columns of the difference from the baseline and of p. A number
// that cannot be computed is left blank.

// - Markdown: the reasons for blank cells follow the table.
// - CSV (RFC 4180 with lines that end in \n): each number has its own column and full precision.
// - LaTeX: a tabular that needs no package.
std::string markdown_table(const Study& study, const std::vector<TableRow>& rows);
std::string csv_table(const Study& study, const std::vector<TableRow>& rows);
std::string latex_table(const Study& study, const std::vector<TableRow>& rows);

// Returns, for example, "3.142 ± 0.021": the half-width with two significant digits and the mean with as many
// decimals. Without a half-width the mean has six significant digits.
std::string with_half_width(const std::optional<double>& mean, const std::optional<double>& half_width,
                            bool with_sign = false);

// Returns study.json:
//
//   {"study", "measure": [], "baseline",
//    "runs": [{"variant", "grid": {}, "seed", "path", "status": "done|failed|pending",
//              "values": {measure: number}, "diverged": [measure], "config_hash", "seconds",
//              "cause" (if the run, or a command after it, failed)}],
//    "table": [{"variant", "grid", "n", "values": {measure: {"mean", "half_width", "n", "diverged"}},
//               "difference": {measure: {"mean", "half_width", "p", "p_holm", "n"}}, "notes"}],
//    "compare": [{"name", "of", "less", "measure", "n", "mean", "half_width", "std", "t", "p", "p_holm",
//    "verdicts", "note"}]}
//
// A ratio in "compare" has "over": {"of", "less"}, "ratio", "low" and "high" instead of the numbers after
// "n". A number that cannot be computed is null. "difference" of the baseline is null.
std::string study_json(const Study& study, const std::vector<StudyRun>& runs,
                       const std::vector<RunRecord>& records, const StudyResults& results);

std::string markdown_results(const Study& study, const StudyResults& results);

// Writes study.json, table.md, table.csv and table.tex to the study's output directory, each atomically.
void write_result_files(const Study& study, const std::vector<StudyRun>& runs,
                        const std::vector<RunRecord>& records, const StudyResults& results);

}  // namespace dtopp::study

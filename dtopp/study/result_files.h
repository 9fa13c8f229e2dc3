// Writes the results of a study to study.json, table.md, table.csv and table.tex.
#pragma once

#include <string>
#include <vector>

#include "dtopp/study/results.h"

namespace dtopp::study {

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

// Returns table.md: the table, and the table of the planned comparisons.
std::string markdown_results(const Study& study, const StudyResults& results);

// Writes the four files to the study's output directory, each atomically.
void write_result_files(const Study& study, const std::vector<StudyRun>& runs,
                        const std::vector<RunRecord>& records, const StudyResults& results);

}  // namespace dtopp::study

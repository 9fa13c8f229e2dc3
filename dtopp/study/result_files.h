// A study's results as files: study.json, table.md, table.csv, table.tex.
#pragma once

#include <string>
#include <vector>

#include "dtopp/study/results.h"

namespace dtopp {

// {"runs": [{"variant", "grid": {}, "seed", "path", "status": "done|failed|pending", "values": {measure:
// number}}], "table": [{"variant", "grid", "n", "values": {measure: {"mean", "half_width"}}, "difference":
// {measure: {"mean", "half_width", "p", "p_holm", "n"}}, "notes"}]}; a failed run has its "cause" too. What
// there is no number for is null, as is the whole difference of the baseline.
std::string study_json(const Study& study, const std::vector<StudyRun>& runs,
                       const std::vector<RunRecord>& records, const StudyResults& results);

// Writes all four into the study's output, each complete or as it was before.
void write_result_files(const Study& study, const std::vector<StudyRun>& runs,
                        const std::vector<RunRecord>& records, const StudyResults& results);

}  // namespace dtopp

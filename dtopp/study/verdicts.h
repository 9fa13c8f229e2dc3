// Computes the planned comparisons of a study, and decides them by rules that are fixed before its runs.
//
// A positive difference of `of` minus `less` in a loss means that `less` is ahead.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtopp/study/comparison.h"
#include "dtopp/study/expansion.h"
#include "dtopp/study/run_folder.h"

namespace dtopp::study {

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

// Computes the differences and ratios from the values of the runs. Runs that are not done or have no value
// are left out with their pairs.
std::vector<ComparisonResult> compute_comparisons(const Study& study, const std::vector<StudyRun>& runs,
                                                  const std::vector<RunRecord>& records,
                                                  const std::vector<std::vector<RunValue>>& values);

// Sets p_holm and the verdicts. Comparisons with the same family share one correction. A comparison of a
// family that has no p yet counts as p = 1, so that a part of a study does not look more certain than the
// whole.
void decide(std::vector<ComparisonResult>& results);

// Returns a Markdown table of the comparisons; empty if there are none.
std::string comparison_table(const std::vector<ComparisonResult>& results);

// Returns one line per plain comparison with its n and the standard deviation of its differences, and nothing
// about their sign or size.
std::string blind_text(const std::vector<ComparisonResult>& results);

}  // namespace dtopp::study

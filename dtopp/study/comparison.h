// Computes a run's value of a measure, and compares runs that differ only in their seed with a baseline.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtopp/runs/run_history.h"
#include "dtopp/study/statistics.h"

namespace dtopp::study {

// The value of a measure in one run. A run whose last value is not finite has diverged and has no value.
struct RunValue {
  std::optional<double> value = std::nullopt;
  bool diverged = false;
};

// For val/… and eval/…, which are measured at intervals, and for counts of all steps so far
// (train/active_flops, …), the value is the last one. For every other measure, which each step logs, it is
// the mean over the last tenth of the steps; steps without a finite value (skipped ones) are left out.
RunValue value_of_run(const runs::RunHistory& history, const std::string& measure);

using ValuesBySeed = std::map<int64_t, RunValue>;

// A measure of some runs, and its difference from the runs of the baseline with the same seeds. Runs without
// a value are left out.
struct Comparison {
  Interval values{};
  int64_t diverged = 0;                          // number of runs that diverged
  std::optional<PairedDifference> difference{};  // nullopt for the baseline
  std::optional<double> p_holm{};                // p, adjusted for all differences of the measure
};

// Compares groups[i] with groups[baselines[i]]. A group that is its own baseline has no difference.
std::vector<Comparison> compare(const std::vector<ValuesBySeed>& groups,
                                const std::vector<size_t>& baselines);

// Returns `text`, the text of a mean, with the number of runs that it leaves out: "3.1 (1 diverged)". Without
// a mean it returns "diverged".
std::string with_diverged(const std::string& text, const Comparison& comparison);

}  // namespace dtopp::study

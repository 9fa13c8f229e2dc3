// Computes the curves of a study: a measure's mean over seeds with its interval, against tokens, active FLOPs
// or time.
#pragma once

#include "dtopp/runs/run_history.h"
#include "dtopp/study/results.h"

namespace dtopp::study {

enum class CurveAxis { kTokens, kActiveFlops, kSeconds };

constexpr auto enum_names(CurveAxis) {
  return std::to_array<std::string_view>({"tokens", "active_flops", "seconds"});
}

struct Points {
  std::vector<double> x, y;
};

// Returns a run's measure (y) against the tokens, FLOPs or seconds used so far (x), interpolated between
// logged steps. FLOPs are train/active_flops and seconds throughput/seconds. No points if the run lacks them.
Points points_of(const runs::RunHistory& history, const std::string& measure, CurveAxis axis);

// A measure of one run, and the tokens, FLOPs and seconds (x, by CurveAxis) at which it was measured. x is
// empty if the run lacks that axis.
struct RunCurve {
  std::vector<double> value{};
  std::array<std::vector<double>, 3> x{};
};
using RunCurves = std::map<std::string, RunCurve>;  // by measure

// Returns the curves of the measures that a run logs and in which it has not diverged. A curve with more than
// `most` points is reduced to `most` means of neighboring points.
RunCurves curves_of_run(const runs::RunHistory& history, const std::vector<std::string>& measures,
                        size_t most);

// The mean of several runs at common x, with its interval.
struct Curve {
  std::vector<double> x{};
  std::vector<Interval> y{};
};
inline constexpr size_t kMostPoints = 400;

// Averages several runs. If all runs have the same x, the curve uses it. Otherwise it uses evenly spaced x
// over the common range and interpolates linearly. A run with more than kMostPoints points is first reduced.
Curve mean_curve(std::vector<Points> runs);

// Writes the curves of all done runs that have not diverged to OUTPUT/curves.json: {"curves": [{"variant",
// "grid", "measure", "axis", "n", "x": [], "mean": [], "half_width": []}]}. `known` holds the curves
// of runs without a folder, by index.
void write_curves(const Study& study, const std::vector<StudyRun>& runs,
                  const std::vector<RunRecord>& records, const std::map<size_t, RunCurves>& known = {});

}  // namespace dtopp::study

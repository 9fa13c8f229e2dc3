// Computes the curves of a study: a measure's mean over seeds with its interval, against tokens, active FLOPs
// or time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtopp/runs/run_history.h"
#include "dtopp/study/results.h"

namespace dtopp::study {

enum class CurveAxis { kTokens, kActiveFlops, kSeconds };

// "tokens", "active_flops", "seconds"
std::string to_text(CurveAxis axis);

struct Points {
  std::vector<double> x, y;
};

// Returns a run's measure (y) against the tokens, FLOPs or seconds used so far (x), interpolated between
// logged steps. FLOPs are train/active_flops and seconds throughput/seconds. No points if the run lacks them.
Points points_of(const runs::RunHistory& history, const std::string& measure, CurveAxis axis);

// The mean of several runs at common x, with its interval.
struct Curve {
  std::vector<double> x{};
  std::vector<Interval> y{};
};
inline constexpr size_t kMostPoints = 400;

// Averages several runs. If all runs have the same x, the curve uses it. Otherwise it uses evenly spaced x
// over the common range and interpolates linearly. A run with more than kMostPoints points is first reduced
// to kMostPoints means of neighboring points.
Curve mean_curve(std::vector<Points> runs);

// Writes the curves of all done runs that have not diverged to OUTPUT/curves.json: {"curves": [{"variant",
// "grid", "measure", "axis", "n", "x": [], "mean": [], "half_width": []}]}.
void write_curves(const Study& study, const std::vector<StudyRun>& runs,
                  const std::vector<RunRecord>& records);

}  // namespace dtopp::study

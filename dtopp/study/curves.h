// Computes the curves of a study: a measure's mean over seeds with its interval, against tokens, active FLOPs
// or time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtopp/runs/run_history.h"
#include "dtopp/study/results.h"
#include "dtopp/study/token_cost.h"

namespace dtopp::study {

enum class CurveAxis { kTokens, kActiveFlops, kSeconds };

// "tokens", "active_flops", "seconds"
std::string to_text(CurveAxis axis);

struct Points {
  std::vector<double> x, y;
};

// Returns the tokens, FLOPs or seconds (y) that a run had used after each training step (x), from (0, 0) on.
Points taken_by_step(const runs::RunHistory& history, CurveAxis axis, const TokenCost& cost);

// Returns a run's measure (y) against the tokens, FLOPs or seconds used so far (x). FLOPs count the experts
// that tokens selected. Seconds count training steps only, without validations, checkpoints and pauses.
Points points_of(const runs::RunHistory& history, const std::string& measure, CurveAxis axis,
                 const TokenCost& cost);

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
// "grid", "measure", "axis", "n", "x": [], "mean": [], "half_width": []}]}. `costs` holds one entry per run.
void write_curves(const Study& study, const std::vector<StudyRun>& runs,
                  const std::vector<RunRecord>& records, const std::vector<TokenCost>& costs);

}  // namespace dtopp::study

// How a measure went while the runs of a study trained: its mean over seeds with a band, at equal tokens,
// equal active FLOPs, equal time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtopp/runs/run_history.h"
#include "dtopp/study/results.h"
#include "dtopp/study/token_cost.h"

namespace dtopp {

enum class CurveAxis { kTokens, kActiveFlops, kSeconds };

// "tokens", "active_flops", "seconds"
std::string to_text(CurveAxis axis);

struct Points {
  std::vector<double> x, y;
};

// What a run had taken by each training step (x), from (0, 0) on.
Points taken_by_step(const RunHistory& history, CurveAxis axis, const TokenCost& cost);

// A run's measure against what it had taken to get there. FLOPs are those of the experts that its tokens
// chose; seconds are of its steps alone, without validations, checkpoints and pauses.
Points points_of(const RunHistory& history, const std::string& measure, CurveAxis axis,
                 const TokenCost& cost);

// Several runs at the same x: where they have all the same, there; else at equal distances over what they
// have in common, between their points on straight lines. Of more than kMostPoints, blocks of neighbours are
// averaged first.
struct Curve {
  std::vector<double> x{};
  std::vector<Interval> y{};
};
inline constexpr size_t kMostPoints = 400;
Curve mean_curve(std::vector<Points> runs);

// Writes OUTPUT/curves.json: {"curves": [{"variant", "grid", "measure", "axis", "n", "x": [], "mean": [],
// "half_width": []}]} of all done runs. `costs`: one a run.
void write_curves(const Study& study, const std::vector<StudyRun>& runs,
                  const std::vector<RunRecord>& records, const std::vector<TokenCost>& costs);

}  // namespace dtopp

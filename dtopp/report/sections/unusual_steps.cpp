#include <algorithm>
#include <cmath>
#include <vector>

#include "dtopp/base/median.h"
#include "dtopp/report/document/numbers.h"
#include "dtopp/report/sections/drawing.h"
#include "dtopp/report/sections/sections.h"
#include "dtopp/runs/run_directory.h"

namespace dtopp::report {
namespace {

using namespace report_text;

constexpr size_t kBefore = 32;  // logged losses that a spike is compared with
constexpr double kFactor = 8;   // times their median absolute deviation
constexpr size_t kPerRun = 5;   // rows of each kind per run

struct UnusualStep {
  int64_t step = 0;
  std::string what;
  double height = 0;
};

std::vector<UnusualStep> skipped_steps(const ReportRun& run) {
  std::vector<UnusualStep> found;
  const runs::Series* series = find_series(run, "train/skipped_steps");
  if (series == nullptr) return found;
  for (size_t i = 0; i < series->values.size() && found.size() < kPerRun; ++i) {
    if (series->values[i] > (i == 0 ? 0 : series->values[i - 1]))
      found.push_back({series->steps[i], "skipped"});
  }
  return found;
}

// The highest losses above their predecessors.
std::vector<UnusualStep> loss_spikes(const ReportRun& run) {
  std::vector<UnusualStep> found;
  const runs::Series* series = find_series(run, main_loss(run));
  if (series == nullptr) return found;
  const runs::Series finite = finite_points(*series);
  for (size_t i = kBefore; i < finite.values.size(); ++i) {
    const auto end = finite.values.begin() + static_cast<std::ptrdiff_t>(i);
    std::vector<double> before(end - kBefore, end);
    const double level = dtopp::median(before);
    for (double& value : before) value = std::abs(value - level);
    const double height = finite.values[i] - level;
    if (height > kFactor * dtopp::median(before) && height > 0)
      found.push_back(
          {finite.steps[i], "loss " + fixed(finite.values[i], 3) + " after " + fixed(level, 3), height});
  }
  std::ranges::stable_sort(found, std::ranges::greater(), &UnusualStep::height);
  found.resize(std::min(found.size(), kPerRun));
  std::ranges::sort(found, {}, &UnusualStep::step);
  return found;
}

}  // namespace

std::optional<ReportTable> unusual_steps(const ReportInput& input) {
  ReportTable table{"Unusual steps", {"run", "step", "what", "command that shows its values"}};
  for (size_t i = 0; i < input.runs.size(); ++i) {
    std::vector<UnusualStep> steps = skipped_steps(input.runs[i]);
    std::ranges::move(loss_spikes(input.runs[i]), std::back_inserter(steps));
    for (const UnusualStep& step : steps)
      table.rows.push_back(
          {RunCell{static_cast<int>(i)}, whole(step.step), step.what,
           "dtopp replay " + input.runs[i].path.string() + " --step " + std::to_string(step.step)});
  }
  if (table.rows.empty()) return std::nullopt;
  table.note =
      "At most five skipped steps and five losses per run. A loss is unusual if it exceeds the median of the "
      "32 logged "
      "losses before it by eight times their median absolute deviation.";
  return table;
}

}  // namespace dtopp::report

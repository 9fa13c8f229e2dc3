#include "dtopp/study/forecast.h"

#include <algorithm>

#include "dtopp/base/format.h"
#include "dtopp/base/median.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/runs/run_history.h"
#include "dtopp/study/results.h"

namespace dtopp::study {
namespace {

constexpr double kHour = 3600;
constexpr double kStart = 2;               // seconds from a run's start to its first step
constexpr double kForwardShare = 1.0 / 3;  // share of a training step's FLOPs

double share_left(const StudyRun& run, const RunRecord& record) {
  if (record.status == RunStatus::kDone || !run.selected) return 0;
  const double done = static_cast<double>(last_step(run)) / static_cast<double>(run.config.training.steps);
  return std::clamp(1 - done, 0.0, 1.0);
}

std::string forecast_line(int width, const std::string& name, const std::string& status,
                          const std::string& steps, const std::string& flops, const std::string& hours) {
  return format("%-*s  %-8s%10s%10s%10s\n", width, name.c_str(), status.c_str(), steps.c_str(), flops.c_str(),
                hours.c_str());
}

}  // namespace

ReachedShare reached_share(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                           const std::vector<RunCost>& costs) {
  ReachedShare reached;
  double sum = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (records[i].status != RunStatus::kDone) continue;
    if (path_kind(metrics_of_run(runs[i])) == PathKind::kNothing) continue;  // known from the ledger alone
    const runs::RunHistory history = runs::read_run_history(metrics_of_run(runs[i]));
    const auto tflops = history.series.find("throughput/tflops");
    if (tflops == history.series.end()) continue;
    sum += 1e12 * median(tflops->second.values) / costs[i].matrix_rate;
    ++reached.runs;
  }
  if (reached.runs > 0) reached.share = sum / static_cast<double>(reached.runs);
  return reached;
}

double flops_of(const config::RunConfig& config, double flops_per_token, double tokens_per_step) {
  const auto steps = static_cast<double>(config.training.steps);
  double tokens = steps * tokens_per_step;
  if (config.validation.every > 0 && !config.data.validation.empty()) {
    const int64_t every = config.validation.every;
    const int64_t validations = 1 + (config.training.steps + every - 1) / every;
    // validation.tokens are those of each source.
    const size_t sources = config.data.validates_by_source() ? config.data.validation.size() : 1;
    tokens += kForwardShare * static_cast<double>(validations * config.validation.tokens) *
              static_cast<double>(sources);
  }
  return tokens * flops_per_token;
}

std::string forecast_table(const std::vector<StudyRun>& runs, const std::vector<RunRecord>& records,
                           const std::vector<RunCost>& costs, const ReachedShare& reached) {
  size_t width = 5;
  for (const StudyRun& run : runs) width = std::max(width, run.name.size());
  const int columns = static_cast<int>(width);
  std::string text = forecast_line(columns, "run", "status", "steps", "FLOPs", "hours");
  double flops = 0;
  double seconds = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const double left = costs[i].flops * share_left(runs[i], records[i]);
    const double time = left > 0 ? kStart + left / (costs[i].matrix_rate * reached.share) : 0;
    flops += left;
    seconds += time;
    text += forecast_line(columns, runs[i].name, to_text(records[i].status),
                          std::to_string(runs[i].config.training.steps), format_count(left),
                          format("%.3g", time / kHour));
  }
  text += forecast_line(columns, "total", "", std::to_string(runs.size()) + " runs", format_count(flops),
                        format("%.3g", seconds / kHour));
  const std::string why = reached.runs > 0 ? "measured in " + std::to_string(reached.runs) + " of its runs"
                                           : std::string("assumed");
  return text + format("hours: at %.0f %% (%s) of this machine's FLOP/s in matrix products, %s\n",
                       100 * reached.share, why.c_str(), format_count(costs.front().matrix_rate).c_str());
}

}  // namespace dtopp::study

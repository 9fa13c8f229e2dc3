#include <cmath>

#include "dtopp/report/numbers.h"
#include "dtopp/report/sections.h"

namespace dtopp::report {
namespace {

double of(const ReportRun& run, const std::string& metric, double (*summary)(const runs::Series&)) {
  const runs::Series* series = find_series(run, metric);
  return series != nullptr ? summary(*series) : std::nan("");
}

double highest(const runs::Series& series) {
  double high = std::nan("");
  for (const double value : series.values)
    if (!(value <= high) && std::isfinite(value)) high = value;
  return high;
}

double mean_of_all(const runs::Series& series) {
  const std::vector<double> values = finite_points(series).values;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string percent(double share) { return std::isfinite(share) ? fixed(100 * share, 1) + " %" : "–"; }
std::string bytes(double count) { return std::isfinite(count) ? scaled(count) + "B" : "–"; }

double hours_of(const ReportRun& run) {
  const auto& times = run.history.time.values;
  return times.size() < 2 ? std::nan("") : (times.back() - times.front()) / 3600;
}

std::string duration(double hours) {
  if (!std::isfinite(hours)) return "–";
  if (hours < 1.0 / 60) return fixed(hours * 3600, 1) + " s";
  return hours < 1 ? fixed(hours * 60, 1) + " min" : fixed(hours, 2) + " h";
}

ReportTable cost_table(const ReportInput& input) {
  ReportTable table{"Total",
                    {"run", "time", "tokens per second", "MFU", "waiting for data", "waiting for ranks",
                     "peak memory", "by plan"}};
  for (size_t i = 0; i < input.runs.size(); ++i) {
    const ReportRun& run = input.runs[i];
    // The plan is for one rank, so it does not apply to runs with several.
    const bool is_alone = find_series(run, "comm/bytes") == nullptr;
    table.rows.push_back(
        {RunCell{static_cast<int>(i)}, duration(hours_of(run)),
         scaled(of(run, "throughput/tokens_per_second", median)), percent(of(run, "throughput/mfu", median)),
         percent(of(run, "throughput/data_share", mean_of_all)),
         percent(of(run, "comm/exposed_share", mean_of_all)), bytes(of(run, "memory/peak_bytes", highest)),
         run.planned_bytes && is_alone ? bytes(*run.planned_bytes) : "–"});
  }
  table.note =
      "Time: from the first to the last logged step, including pauses and validations. Tokens per second and "
      "MFU: of the median step; only GPUs that dtopp knows have one. By plan: the estimate of `dtopp plan` "
      "for one process.";
  return table;
}

ReportChart memory_chart(RunDrawing& drawing) {
  ReportChart chart{"Memory", "bytes", drawing.lines("memory/resident_bytes")};
  const std::vector<ReportRun>& runs = drawing.input.runs;
  if (runs.size() == 1 && runs[0].planned_bytes && find_series(runs[0], "comm/bytes") == nullptr)
    chart.levels.push_back({*runs[0].planned_bytes, "by plan"});
  chart.from_zero = chart.exact = true;
  return chart;
}

std::string sentence_of_cost(const ReportRun& run) {
  const double mfu = of(run, "throughput/mfu", median);
  return "Training has taken " + duration(hours_of(run)) + " so far, at " +
         scaled(of(run, "throughput/tokens_per_second", median)) + " tokens per second" +
         (std::isfinite(mfu) ? " and an MFU of " + percent(mfu) : "") + " (median step); " +
         bytes(of(run, "memory/peak_bytes", highest)) + " of peak memory.";
}

}  // namespace

std::optional<ReportSection> cost_section(RunDrawing& drawing) {
  const ReportInput& input = drawing.input;
  if (!any_run_has(input, "throughput/tokens_per_second")) return std::nullopt;
  ReportSection section{"cost", "Cost"};
  if (input.runs.size() == 1) section.answers.push_back(sentence_of_cost(input.runs[0]));
  add_chart(section.blocks, {.title = "Speed",
                             .y_label = "tokens per second",
                             .lines = drawing.lines("throughput/tokens_per_second"),
                             .from_zero = true});
  add_chart(section.blocks, memory_chart(drawing));
  section.blocks.push_back({cost_table(input)});
  add_chart(section.blocks, {.title = "Model FLOPs utilization",
                             .y_label = "share of the data sheet's rate",
                             .lines = drawing.lines("throughput/mfu"),
                             .from_zero = true});
  ReportChart waiting{.title = "Waiting",
                      .y_label = "share of a step",
                      .lines = drawing.lines("throughput/data_share", {.name = "for data"}),
                      .from_zero = true};
  std::ranges::move(drawing.lines("comm/exposed_share", {.name = "for ranks", .minor = true}),
                    std::back_inserter(waiting.lines));
  add_chart(section.blocks, std::move(waiting));
  return section;
}

}  // namespace dtopp::report

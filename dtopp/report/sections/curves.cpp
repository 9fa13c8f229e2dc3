#include <algorithm>
#include <array>

#include "dtopp/report/document/numbers.h"
#include "dtopp/report/sections/sections.h"

namespace dtopp::report {
namespace {

struct Axis {
  const char* name;
  const char* label;
  double unit;
};
constexpr std::array<Axis, 3> kAxes = {
    {{"tokens", "tokens", 1}, {"active_flops", "active FLOPs", 1}, {"seconds", "hours in steps", 3600}}};

// Returns a run of the row, for its color; nullopt if no run of the row has metrics.
std::optional<int> run_of(const ReportInput& input, const std::string& row) {
  const auto run = std::ranges::find(input.runs, row, &ReportRun::study_row);
  if (run == input.runs.end()) return std::nullopt;
  return static_cast<int>(run - input.runs.begin());
}

ReportChart curves_chart(RunDrawing& drawing, const Axis& axis, const std::string& measure) {
  ReportChart chart{measure + " over seeds", "mean, 95 % interval"};
  chart.own_x = axis.label;
  chart.exact = true;
  for (const study::StudyCurve& curve : drawing.input.curves) {
    const auto run = run_of(drawing.input, curve.row);
    if (curve.axis != axis.name || curve.measure != measure || curve.x.empty() || !run) continue;
    const std::string column = "curve " + curve.row + " " + measure + " " + axis.name;
    std::vector<double> x = curve.x;
    for (double& value : x) value /= axis.unit;
    ReportLine line{*run, curve.row + ", mean of " + report_text::count_of(curve.n, "seed")};
    line.of_many = true;
    line.x = drawing.columns.add_exact(column + " x", x);
    line.y = drawing.columns.add(column, curve.mean);
    line.band = drawing.columns.add(column + " band", curve.half_width);
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

}  // namespace

std::vector<ReportBlock> curve_blocks(RunDrawing& drawing) {
  std::vector<std::string> measures;
  for (const study::StudyCurve& curve : drawing.input.curves) {
    if (std::ranges::find(measures, curve.measure) == measures.end()) measures.push_back(curve.measure);
  }
  ReportChoice choice{"curves", "At equal", {}};
  for (const Axis& axis : kAxes) {
    ReportOption option{axis.label, {}};
    for (const std::string& measure : measures) {
      ReportChart chart = curves_chart(drawing, axis, measure);
      if (!chart.lines.empty()) option.blocks.push_back({std::move(chart)});
    }
    if (!option.blocks.empty()) choice.options.push_back(std::move(option));
  }
  if (choice.options.empty()) return {};
  return {{std::move(choice)}};
}

}  // namespace dtopp::report

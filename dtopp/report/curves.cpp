#include <cmath>

#include "dtopp/report/numbers.h"
#include "dtopp/report/sections.h"
#include "dtopp/study/statistics.h"

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
    ReportLine line{*run, curve.row + ", mean of " + count_of(curve.n, "seed")};
    line.of_many = true;
    line.x = drawing.columns.add_exact(column + " x", x);
    line.y = drawing.columns.add(column, curve.mean);
    line.band = drawing.columns.add(column + " band", curve.half_width);
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

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
    const double level = study::median(before);
    for (double& value : before) value = std::abs(value - level);
    const double height = finite.values[i] - level;
    if (height > kFactor * study::median(before) && height > 0)
      found.push_back(
          {finite.steps[i], "loss " + fixed(finite.values[i], 3) + " after " + fixed(level, 3), height});
  }
  std::ranges::stable_sort(found, std::ranges::greater(), &UnusualStep::height);
  found.resize(std::min(found.size(), kPerRun));
  std::ranges::sort(found, {}, &UnusualStep::step);
  return found;
}

}  // namespace

std::vector<ReportBlock> curve_blocks(RunDrawing& drawing) {
  std::vector<std::string> measures;
  for (const study::StudyCurve& curve : drawing.input.curves)
    if (std::ranges::find(measures, curve.measure) == measures.end()) measures.push_back(curve.measure);
  ReportChoice choice{"curves", "At equal", {}};
  for (const Axis& axis : kAxes) {
    ReportOption option{axis.label, {}};
    for (const std::string& measure : measures)
      add_chart(option.blocks, curves_chart(drawing, axis, measure));
    if (!option.blocks.empty()) choice.options.push_back(std::move(option));
  }
  if (choice.options.empty()) return {};
  return {{std::move(choice)}};
}

std::optional<ReportSection> samples_section(RunDrawing& drawing) {
  ReportSection section{"samples", "Samples"};
  ReportTable texts{"Newest texts", {"run", "step", "text"}};
  texts.note = "Before the bar: an opening from held-out data. After it: what the model wrote.";
  for (size_t run = 0; run < drawing.input.runs.size(); ++run) {
    const auto& samples = drawing.input.runs[run].samples;
    if (!samples) continue;
    const int id = static_cast<int>(run);
    for (const std::string& text : samples->texts)
      texts.rows.push_back({RunCell{id}, whole(samples->step), "… " + text});
    if (!samples->png.empty())
      section.blocks.push_back({ReportPicture{"Pictures at step " + whole(samples->step), id, samples->png}});
    else if (samples->texts.empty())
      section.answers.push_back(samples->file.string() + " is empty, or too large to show here.");
  }
  if (!texts.rows.empty()) section.blocks.insert(section.blocks.begin(), {std::move(texts)});
  if (section.blocks.empty() && section.answers.empty()) return std::nullopt;
  return section;
}

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

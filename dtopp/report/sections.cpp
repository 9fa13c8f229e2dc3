#include "dtopp/report/sections.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "dtopp/base/format.h"
#include "dtopp/report/numbers.h"
#include "dtopp/study/statistics.h"

namespace dtopp::report {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<double> steps_of(const runs::Series& series) {
  return {series.steps.begin(), series.steps.end()};
}

// Returns the series' value at each of `steps`, NaN if it has none. Both must be ascending.
std::vector<double> values_at(const std::vector<int64_t>& steps, const runs::Series& series) {
  std::vector<double> values;
  values.reserve(steps.size());
  size_t i = 0;
  for (const int64_t step : steps) {
    while (i < series.steps.size() && series.steps[i] < step) ++i;
    values.push_back(i < series.steps.size() && series.steps[i] == step ? series.values[i] : kNaN);
  }
  return values;
}

std::vector<double> taken(const std::vector<double>& values, const std::vector<size_t>& indices) {
  std::vector<double> result;
  result.reserve(indices.size());
  for (const size_t index : indices) result.push_back(values[index]);
  return result;
}

// Returns the means of blocks of `stride` values. Values that are not finite are left out.
std::vector<double> means(const std::vector<double>& values, size_t stride) {
  std::vector<double> result;
  for (size_t from = 0; from < values.size(); from += stride) {
    double sum = 0, count = 0;
    for (size_t i = from; i < std::min(values.size(), from + stride); ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      ++count;
    }
    result.push_back(count > 0 ? sum / count : kNaN);
  }
  return result;
}

constexpr double kSecondsPerHour = 3600;

int group_of(const ReportInput& input, size_t run) {
  for (size_t group = 0; group < input.groups.size(); ++group)
    if (std::ranges::find(input.groups[group].runs, run) != input.groups[group].runs.end())
      return static_cast<int>(group);
  return 0;
}

// Returns a value after each training line, in `unit`s; nullopt if the run does not log it.
std::optional<std::vector<double>> clock_of(const ReportRun& run, const std::string& metric, double unit) {
  const runs::Series* series = find_series(run, metric);
  if (series == nullptr || series->steps != run.history.tokens.steps) return std::nullopt;
  std::vector<double> values = series->values;
  for (double& value : values) value /= unit;
  return values;
}

ReportedRun describe(const ReportInput& input, size_t index, Columns& columns) {
  const ReportRun& run = input.runs[index];
  // The tag identifies a run without relying on colors.
  const std::string tag = std::to_string(index + 1);
  ReportedRun described{run.name, tag, run.path.string(), group_of(input, index), std::nullopt};
  const runs::Series& tokens = run.history.tokens;
  if (tokens.steps.empty()) return described;
  const std::string column = std::to_string(index) + " clock";
  described.clock = {
      .steps = columns.add_exact(column, std::vector<double>(tokens.steps.begin(), tokens.steps.end())),
      .tokens = columns.add_exact(column + " tokens", tokens.values)};
  if (const auto hours = clock_of(run, "throughput/seconds", kSecondsPerHour))
    described.clock->hours = columns.add(column + " hours", *hours);
  if (const auto flops = clock_of(run, "train/active_flops", 1))
    described.clock->flops = columns.add(column + " flops", *flops);
  return described;
}

std::string about(const ReportInput& input) {
  int64_t tokens = 0;
  for (const ReportRun& run : input.runs)
    if (!run.history.tokens.values.empty()) tokens += static_cast<int64_t>(run.history.tokens.values.back());
  if (input.runs.size() > 1)
    return count_of(input.runs.size(), "run") + ", " + count_of(input.groups.size(), "configuration") + ", " +
           scaled(static_cast<double>(tokens)) + " tokens in total";
  const config::RunConfig& config = input.runs[0].config;
  const bool is_dense = config.model.is_dense();
  return whole(config.model.num_layers) + " layers of width " + whole(config.model.hidden_size) +
         (is_dense
              ? ", dense"
              : ", " + whole(config.model.num_experts) + " experts, " + enum_name(config.routing.method)) +
         " · " + scaled(static_cast<double>(tokens)) + " tokens · " + input.runs[0].path.string();
}

}  // namespace

const runs::Series* find_series(const ReportRun& run, const std::string& metric) {
  const auto found = run.history.series.find(metric);
  return found == run.history.series.end() || found->second.values.empty() ? nullptr : &found->second;
}

bool any_run_has(const ReportInput& input, const std::string& metric) {
  return std::ranges::any_of(input.runs,
                             [&](const ReportRun& run) { return find_series(run, metric) != nullptr; });
}

bool any_run_has_more_than_zero(const ReportInput& input, const std::string& metric) {
  return std::ranges::any_of(input.runs, [&](const ReportRun& run) {
    const runs::Series* series = find_series(run, metric);
    return series != nullptr && std::ranges::any_of(series->values, [](double value) { return value != 0; });
  });
}

const char* main_loss(const ReportRun& run) {
  for (const char* metric : {"train/lm_loss", "train/diffusion_loss"})
    if (find_series(run, metric) != nullptr) return metric;
  return "train/loss";
}

runs::Series finite_points(const runs::Series& series) {
  runs::Series finite;
  for (size_t i = 0; i < series.values.size(); ++i) {
    if (!std::isfinite(series.values[i])) continue;
    finite.steps.push_back(series.steps[i]);
    finite.values.push_back(series.values[i]);
  }
  return finite;
}

std::string value_text(const ReportRun& run, const std::string& metric, int digits, double factor) {
  const study::RunValue run_value = study::value_of_run(run.history, metric);
  if (run_value.diverged) return "diverged";
  return fixed(factor * run_value.value.value_or(kNaN), digits);
}

double median(const runs::Series& series) {
  const std::vector<double> values = finite_points(series).values;
  return values.empty() ? kNaN : study::median(values);
}

std::vector<ReportLine> RunDrawing::lines(const std::string& metric, const LineStyle& style) {
  std::vector<ReportLine> made;
  for (size_t run = 0; run < input.runs.size(); ++run) {
    if (const runs::Series* series = find_series(input.runs[run], metric)) {
      const runs::Series* band = style.band.empty() ? nullptr : find_series(input.runs[run], style.band);
      made.push_back(line(run, metric, *series, style, band));
    }
  }
  return made;
}

ReportLine RunDrawing::line(size_t run, const std::string& key, const runs::Series& series,
                            const LineStyle& style, const runs::Series* band) {
  const std::string column = std::to_string(run) + " " + key;
  ReportLine made{static_cast<int>(run), style.name};
  made.marks = style.marks;
  made.minor = style.minor;
  const std::vector<size_t> indices = thinned_indices(series.values, kPointsOfLine);
  if (indices.size() < series.values.size()) most_points = std::max(most_points, series.values.size());
  // Lines with the run's training steps share one column.
  const bool is_clock = series.steps == input.runs[run].history.tokens.steps;
  const bool is_whole = indices.size() == series.values.size();
  made.x = columns.add_exact(is_clock && is_whole ? std::to_string(run) + " clock" : column + " steps",
                             taken(steps_of(series), indices));
  made.y = columns.add(column, taken(series.values, indices));
  if (band != nullptr)
    made.band = columns.add(column + " band", taken(values_at(series.steps, *band), indices));
  return made;
}

ReportHeatMap RunDrawing::heat_map(size_t run, const std::string& key, const std::string& title,
                                   const std::string& row_label, const NamedSeries& rows) {
  ReportHeatMap map{title, row_label, static_cast<int>(run)};
  const runs::Series& first = *rows.at(0).second;
  const size_t stride = (first.steps.size() + kCellsOfRow - 1) / kCellsOfRow;
  const std::string column = std::to_string(run) + " heat " + key;
  map.x = columns.add_exact(column + " steps", means(steps_of(first), stride));
  for (const auto& [name, series] : rows) {
    map.rows.push_back(name);
    map.cells.push_back(columns.add(column + " " + name, means(values_at(first.steps, *series), stride)));
  }
  if (stride > 1) map.note = "Each cell is the mean of " + count_of(stride, "logged step") + ".";
  return map;
}

void add_chart(std::vector<ReportBlock>& blocks, ReportChart chart) {
  if (!chart.lines.empty()) blocks.push_back({std::move(chart)});
}

ReportLine RunDrawing::points(size_t run, const std::string& key, const std::string& name,
                              const std::vector<double>& x, const std::vector<double>& y) {
  const std::string column = std::to_string(run) + " " + key + " " + name;
  ReportLine line{static_cast<int>(run), name};
  line.x = columns.add_exact(column + " x", x);
  line.y = columns.add(column, y);
  line.marks = true;
  return line;
}

std::optional<ReportHeatMap> RunDrawing::layers(size_t run, const std::string& name,
                                                const std::string& title) {
  std::map<int, const runs::Series*> by_layer;
  for (const auto& [metric, series] : input.runs[run].history.series) {
    constexpr std::string_view kPrefix = "moe/layer_";
    if (metric.starts_with(kPrefix) && metric.ends_with("/" + name) && !series.values.empty())
      by_layer[std::atoi(metric.c_str() + kPrefix.size())] = &series;
  }
  if (by_layer.empty()) return std::nullopt;
  NamedSeries rows;
  for (const auto& [layer, series] : by_layer) rows.emplace_back(std::to_string(layer), series);
  return heat_map(run, name, title, "layer", rows);
}

ReportDocument make_document(const ReportInput& input, Columns& columns) {
  ReportDocument document{input.title, about(input), {}, {}, {}};
  RunDrawing drawing(input, columns);
  for (size_t run = 0; run < input.runs.size(); ++run) document.runs.push_back(describe(input, run, columns));
  for (const auto make :
       {learned_section, samples_section, budget_section, experts_section, cost_section, compared_section}) {
    if (auto section = make(drawing)) document.sections.push_back(std::move(*section));
  }
  for (const ReportRun& run : input.runs)
    std::ranges::copy(run.evaluations.skipped, std::back_inserter(document.notes));
  if (any_run_has(input, "train/active_flops"))
    document.notes.push_back(
        "Active FLOPs: forward and backward, as dtopp plan counts them for the experts that tokens "
        "activated. "
        "Hours in steps: without validations, saves and pauses.");
  if (drawing.most_points > 0)
    document.notes.push_back("Lines of more than " + whole(kPointsOfLine) + " points (here up to " +
                             whole(static_cast<int64_t>(drawing.most_points)) +
                             ") show the minimum and maximum of each of " + whole(kPointsOfLine / 2) +
                             " equal intervals.");
  return document;
}

}  // namespace dtopp::report

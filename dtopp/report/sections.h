// The sections of a report, and what several of them draw with.
#pragma once

#include "dtopp/report/document.h"
#include "dtopp/report/input.h"

namespace dtopp::report {

constexpr size_t kPointsOfLine = 100000;  // maximum points per line
constexpr size_t kCellsOfRow = 4096;      // maximum cells per heat map row; a cell is a mean over steps

// Returns the series of a run's metric; null if the run has no value of it.
const runs::Series* find_series(const ReportRun& run, const std::string& metric);
bool any_run_has(const ReportInput& input, const std::string& metric);
bool any_run_has_more_than_zero(const ReportInput& input, const std::string& metric);

// Returns the metric of the training loss without routing losses, by which models are compared.
const char* main_loss(const ReportRun& run);

runs::Series finite_points(const runs::Series& series);
// Returns the median of the finite values; NaN if there is none.
double median(const runs::Series& series);

// Returns the run's value (value_of_run) as text: "3.142", "diverged", or "–" if the run has none. `factor`
// converts the unit.
std::string value_text(const ReportRun& run, const std::string& metric, int digits, double factor = 1);

using NamedSeries = std::vector<std::pair<std::string, const runs::Series*>>;

struct LineStyle {
  std::string name{};
  std::string band{};  // metric with the half-widths of the band
  bool marks = false;
  bool minor = false;
};

// Draws metrics of runs as lines and heat maps. It creates their columns and thins long ones.
class RunDrawing {
 public:
  RunDrawing(const ReportInput& input, Columns& columns) : input(input), columns(columns) {}

  std::vector<ReportLine> lines(const std::string& metric, const LineStyle& style = {});
  ReportLine line(size_t run, const std::string& key, const runs::Series& series, const LineStyle& style = {},
                  const runs::Series* band = nullptr);
  // Returns a line of marked points over the chart's own x.
  ReportLine points(size_t run, const std::string& key, const std::string& name, const std::vector<double>& x,
                    const std::vector<double>& y);
  // Returns a map with one row per layer (moe/layer_00/NAME, …); nullopt if the run has no such metric.
  std::optional<ReportHeatMap> layers(size_t run, const std::string& name, const std::string& title);
  // Returns a map of `rows` over the steps of the first row.
  ReportHeatMap heat_map(size_t run, const std::string& key, const std::string& title,
                         const std::string& row_label, const NamedSeries& rows);

  const ReportInput& input;
  Columns& columns;
  size_t most_points = 0;  // length of the longest thinned line; 0: none was thinned
};

// Appends the chart, unless it has no line.
void add_chart(std::vector<ReportBlock>& blocks, ReportChart chart);

// Creates the sections of a report. Each answers one question. A section is nullopt if the runs have no data
// for it.

std::optional<ReportSection> learned_section(RunDrawing& drawing);   // losses and gradients
std::optional<ReportSection> samples_section(RunDrawing& drawing);   // the newest texts and pictures
std::optional<ReportSection> budget_section(RunDrawing& drawing);    // active experts and thresholds
std::optional<ReportSection> experts_section(RunDrawing& drawing);   // load of experts and layers
std::optional<ReportSection> cost_section(RunDrawing& drawing);      // time, memory and throughput
std::optional<ReportSection> compared_section(RunDrawing& drawing);  // comparison of runs

// Creates the document: all available sections, and the runs with their clocks.
ReportDocument make_document(const ReportInput& input, Columns& columns);

// Returns blocks of a run's expert load and active experts, from its `evaluate experts` files.
std::vector<ReportBlock> activation_blocks(RunDrawing& drawing, size_t run);

// Returns charts of a study's measures during training: mean and interval over seeds at equal tokens, FLOPs
// or time.
std::vector<ReportBlock> curve_blocks(RunDrawing& drawing);

// Returns the skipped steps and the spikes of the loss, each with the command that replays it; nullopt: none.
std::optional<ReportTable> unusual_steps(const ReportInput& input);

// Returns tables of differences from the first group, paired by seed: those of the studies, or else computed
// from the runs.
std::vector<ReportBlock> difference_blocks(const ReportInput& input);

// Returns the first step from which every mean over kSettleLines logged values is within kSettleTolerance
// (relative) of the target; nullopt if there is none.
constexpr size_t kSettleLines = 20;
constexpr double kSettleTolerance = 0.05;
std::optional<int64_t> settled_at(const runs::Series& series, double target);

}  // namespace dtopp::report

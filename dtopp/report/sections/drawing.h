// Draws metrics of runs as lines and heat maps. It creates their columns and thins long ones.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtopp/report/document/columns.h"
#include "dtopp/report/document/document.h"
#include "dtopp/report/sections/input.h"

namespace dtopp::report {

constexpr size_t kPointsOfLine = 100000;  // maximum points per line
constexpr size_t kCellsOfRow = 4096;      // maximum cells per heat map row; a cell is a mean over steps

// Returns the series of a run's metric; null if the run has no value of it.
const runs::Series* find_series(const ReportRun& run, const std::string& metric);
bool any_run_has(const ReportInput& input, const std::string& metric);
// Returns whether any run has a nonzero value of the metric.
bool any_run_has_more_than_zero(const ReportInput& input, const std::string& metric);

// Returns the metric of the training loss without routing losses, by which models are compared.
const char* main_loss(const ReportRun& run);

// Returns the points with finite values.
runs::Series finite_points(const runs::Series& series);
// Returns the median of the finite values; NaN if there is none.
double median(const runs::Series& series);

// Returns the run's value (value_of_run) as text: "3.142", "diverged", or "–" if the run has none. `factor`
// converts the unit.
std::string value_text(const ReportRun& run, const std::string& metric, int digits, double factor = 1);

struct LineStyle {
  std::string name{};
  std::string band{};  // metric with the half-widths of the band
  bool marks = false;
  bool minor = false;
};

class RunDrawing {
 public:
  RunDrawing(const ReportInput& input, Columns& columns) : input(input), columns(columns) {}

  // Returns one line per run that has the metric.
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
                         const std::string& row_label, const std::vector<const runs::Series*>& rows,
                         const std::vector<std::string>& names);

  const ReportInput& input;
  Columns& columns;
  size_t most_points = 0;  // length of the longest thinned line; 0: none was thinned
};

}  // namespace dtopp::report

// Metrics of runs as lines and heat maps: the columns behind them are made here, thinned where they are long.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtopp/report/document/columns.h"
#include "dtopp/report/document/document.h"
#include "dtopp/report/sections/input.h"

namespace dtopp {

constexpr size_t kPointsOfLine = 100000;  // drawn at most
constexpr size_t kCellsOfRow = 4096;      // of a heat map; each is the mean of a stretch of steps

// The metric of a run; null where it has none or no value of it.
const Series* find_series(const ReportRun& run, const std::string& metric);
bool any_run_has(const ReportInput& input, const std::string& metric);
// Whether a value of it is other than zero.
bool any_run_has_more_than_zero(const ReportInput& input, const std::string& metric);

// The training loss that models of a kind are compared by, without what routing adds to it.
const char* main_loss(const ReportRun& run);

// Those whose value is finite.
Series finite_points(const Series& series);
// Of the values that are finite; NaN where none is.
double last_value(const Series& series);
double mean_of_last_tenth(const Series& series);
double median(const Series& series);

struct LineStyle {
  std::string name{};
  std::string band{};  // the metric of its half-widths
  bool marks = false;
  bool minor = false;
};

class RunDrawing {
 public:
  RunDrawing(const ReportInput& input, Columns& columns) : input(input), columns(columns) {}

  // A line a run that has the metric.
  std::vector<ReportLine> lines(const std::string& metric, const LineStyle& style = {});
  ReportLine line(size_t run, const std::string& key, const Series& series, const LineStyle& style = {},
                  const Series* band = nullptr);
  // A row a layer: moe/layer_00/NAME …; nullopt where the run has none.
  std::optional<ReportHeatMap> layers(size_t run, const std::string& name, const std::string& title);
  // Rows of series that have the same steps.
  ReportHeatMap heat_map(size_t run, const std::string& key, const std::string& title,
                         const std::string& row_label, const std::vector<const Series*>& rows,
                         const std::vector<std::string>& names);

  const ReportInput& input;
  Columns& columns;
  size_t most_points = 0;  // of a line that was thinned; 0: none
};

}  // namespace dtopp

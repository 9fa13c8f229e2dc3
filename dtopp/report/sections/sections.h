// The questions that a report answers, a section each; none where the runs hold nothing for it.
#pragma once

#include <optional>

#include "dtopp/report/document/document.h"
#include "dtopp/report/sections/drawing.h"

namespace dtopp {

std::optional<ReportSection> learned_section(RunDrawing& drawing);   // did it learn
std::optional<ReportSection> budget_section(RunDrawing& drawing);    // does the budget hold
std::optional<ReportSection> experts_section(RunDrawing& drawing);   // who works
std::optional<ReportSection> cost_section(RunDrawing& drawing);      // what it cost
std::optional<ReportSection> compared_section(RunDrawing& drawing);  // runs beside each other

// All of them that there are, with the runs and their clocks.
ReportDocument make_document(const ReportInput& input, Columns& columns);

// Parts of a run's experts: where the run's evaluations hold them.
std::vector<ReportBlock> activation_blocks(RunDrawing& drawing, size_t run);

// A study's measures over training, mean and interval over seeds, at equal tokens, FLOPs or time.
std::vector<ReportBlock> curve_blocks(RunDrawing& drawing);

// A seed's runs beside the first group's: by the study, else by the runs' own last values.
std::vector<ReportBlock> difference_blocks(const ReportInput& input);

// From where on the mean over kSettleLines logged values stays within kSettleTolerance of the target; none
// where it does not.
constexpr size_t kSettleLines = 20;
constexpr double kSettleTolerance = 0.05;
std::optional<int64_t> settled_at(const Series& series, double target);

}  // namespace dtopp

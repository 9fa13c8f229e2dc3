// Creates the sections of a report. Each answers one question. A section is nullopt if the runs have no data
// for it.
#pragma once

#include <optional>

#include "dtopp/report/document/document.h"
#include "dtopp/report/sections/drawing.h"

namespace dtopp::report {

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

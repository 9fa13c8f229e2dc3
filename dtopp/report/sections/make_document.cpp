#include <algorithm>
#include <cmath>

#include "dtopp/base/format.h"
#include "dtopp/report/document/numbers.h"
#include "dtopp/report/sections/sections.h"

namespace dtopp::report {
namespace {

using namespace report_text;

constexpr double kSecondsPerHour = 3600;

// Returns "1", "2", …: the number that identifies a run without relying on colors.
std::string tag_of(size_t run) { return std::to_string(run + 1); }

int group_of(const ReportInput& input, size_t run) {
  for (size_t group = 0; group < input.groups.size(); ++group) {
    if (std::ranges::find(input.groups[group].runs, run) != input.groups[group].runs.end())
      return static_cast<int>(group);
  }
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
  ReportedRun described{run.name, tag_of(index), run.path.string(), group_of(input, index), std::nullopt};
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
  for (const ReportRun& run : input.runs) {
    if (!run.history.tokens.values.empty()) tokens += static_cast<int64_t>(run.history.tokens.values.back());
  }
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

#include <algorithm>
#include <cmath>
#include <set>

#include "dtopp/report/document/numbers.h"
#include "dtopp/report/sections/sections.h"
#include "dtopp/study/statistics.h"

namespace dtopp {
namespace {

using namespace report_text;

std::string probability(const std::optional<double>& p) {
  if (!p) return "–";
  return *p < 0.001 ? "< 0.001" : fixed(*p, 3);
}

const std::vector<std::string> kHead = {"", "n", "mean", "difference from the first", "p", "p (Holm)"};
constexpr char kNote[] =
    "± is the half-width of the 95 % interval (Student's t) over seeds; differences are paired by seed. p: "
    "two-sided, for the paired difference; p (Holm) is adjusted for the number of rows. –: not defined for a "
    "single seed or equal differences.";

// Returns the value of a run; nullopt if the run has none.
using Measure = std::optional<double> (*)(const ReportRun& run);

std::optional<double> known(const Series* series, double (*summary)(const Series&)) {
  if (series == nullptr || !std::isfinite(summary(*series))) return std::nullopt;
  return summary(*series);
}

std::optional<double> validation_loss(const ReportRun& run) {
  return known(find_series(run, "val/loss"), last_value);
}
std::optional<double> training_loss(const ReportRun& run) {
  return known(find_series(run, main_loss(run)), mean_of_last_tenth);
}
std::optional<double> active_experts(const ReportRun& run) {
  return known(find_series(run, "moe/active_experts"), mean_of_last_tenth);
}

// Compares two groups over their common seeds. `name` is the name of the measure.
StudyRow compare(const ReportInput& input, const RunGroup& group, const RunGroup& baseline,
                 const std::string& name, Measure measure) {
  StudyRow row;
  row.name = group.name;
  std::vector<double> values, paired, beside;
  for (const size_t run : group.runs) {
    const auto value = measure(input.runs[run]);
    if (!value) continue;
    values.push_back(*value);
    for (const size_t other : baseline.runs) {
      const auto first = measure(input.runs[other]);
      if (!first || input.runs[other].config.training.seed != input.runs[run].config.training.seed) continue;
      paired.push_back(*value);
      beside.push_back(*first);
    }
  }
  const Interval mean = mean_interval(values);
  row.n = mean.n;
  row.values[name] = {mean.mean, mean.half_width, std::nullopt, std::nullopt};
  if (&group == &baseline) return row;
  const PairedDifference difference = paired_difference(paired, beside);
  row.differences[name] = {difference.mean, difference.half_width, difference.p, std::nullopt};
  return row;
}

// Computes the rows that a study of these runs would have.
std::vector<StudyRow> rows_of_runs(const ReportInput& input, const std::string& name, Measure measure) {
  std::vector<StudyRow> rows;
  for (const RunGroup& group : input.groups)
    rows.push_back(compare(input, group, input.groups[0], name, measure));
  std::vector<double> p;
  for (const StudyRow& row : rows) {
    if (row.differences.contains(name) && row.differences.at(name).p)
      p.push_back(*row.differences.at(name).p);
  }
  const std::vector<double> adjusted = holm(p);
  size_t next = 0;
  for (StudyRow& row : rows) {
    if (row.differences.contains(name) && row.differences.at(name).p)
      row.differences[name].p_holm = adjusted[next++];
  }
  return rows;
}

ReportTable table_of(const std::string& measure, const std::vector<StudyRow>& rows) {
  ReportTable table{measure, kHead};
  for (const StudyRow& row : rows) {
    const auto value = row.values.find(measure);
    const auto difference = row.differences.find(measure);
    const StudyValue none;
    const StudyValue& mean = value == row.values.end() ? none : value->second;
    const StudyValue& less = difference == row.differences.end() ? none : difference->second;
    table.rows.push_back({row.name, whole(row.n), interval(mean.mean, mean.half_width, 4),
                          interval(less.mean, less.half_width, 4), probability(less.p),
                          probability(less.p_holm)});
  }
  table.note = kNote;
  for (const StudyRow& row : rows) {
    for (const std::string& note : row.notes) table.note += " " + row.name + ": " + note + ".";
  }
  return table;
}

}  // namespace

std::vector<ReportBlock> difference_blocks(const ReportInput& input) {
  std::vector<ReportBlock> blocks;
  std::set<std::string> measures;
  for (const StudyRow& row : input.study) {
    for (const auto& [measure, value] : row.values) measures.insert(measure);
  }
  for (const std::string& measure : measures) blocks.push_back({table_of(measure, input.study)});
  if (!blocks.empty() || input.groups.size() < 2) return blocks;
  static constexpr std::pair<const char*, Measure> kMeasures[] = {
      {"Last validation loss", validation_loss},
      {"Training loss over the last tenth", training_loss},
      {"Active experts per token over the last tenth", active_experts}};
  for (const auto& [name, measure] : kMeasures) {
    const std::vector<StudyRow> rows = rows_of_runs(input, name, measure);
    if (std::ranges::any_of(rows, [](const StudyRow& row) { return row.n > 0; }))
      blocks.push_back({table_of(name, rows)});
  }
  return blocks;
}

}  // namespace dtopp

#include <algorithm>
#include <cmath>
#include <set>

#include "dtopp/report/numbers.h"
#include "dtopp/report/sections.h"
#include "dtopp/study/statistics.h"

namespace dtopp {
namespace {

using namespace report_text;

std::string probability(const std::optional<double>& p) {
  if (!p) return "–";
  return *p < 0.001 ? "< 0.001" : fixed(*p, 3);
}

std::vector<double> ordered(const std::vector<std::optional<double>>& p) {
  std::vector<double> known;
  for (const auto& value : p) {
    if (value) known.push_back(*value);
  }
  return known;
}

const std::vector<std::string> kHead = {"", "n", "mean", "difference from the first", "p", "p (Holm)"};
constexpr char kNote[] =
    "± is the half-width of the 95 % interval (Student's t) over seeds; differences are paired by seed. p: "
    "two-sided, of "
    "the paired difference; Holm's allows for the number of rows. –: one seed, or no spread, gives none.";

// A number of the measure a run, at the seeds that both have.
StudyRow compare(const ReportInput& input, const RunGroup& group, const RunGroup& baseline,
                 const std::string& metric) {
  StudyRow row;
  row.name = group.name;
  std::vector<double> values, paired, beside;
  for (const size_t run : group.runs) {
    const Series* series = find_series(input.runs[run], metric);
    if (series == nullptr || !std::isfinite(last_value(*series))) continue;
    values.push_back(last_value(*series));
    for (const size_t other : baseline.runs) {
      const Series* first = find_series(input.runs[other], metric);
      if (first == nullptr || input.runs[other].config.training.seed != input.runs[run].config.training.seed)
        continue;
      paired.push_back(values.back());
      beside.push_back(last_value(*first));
    }
  }
  const Interval mean = mean_interval(values);
  row.n = mean.n;
  row.values[metric] = {mean.mean, mean.half_width, std::nullopt, std::nullopt};
  if (&group == &baseline) return row;
  const PairedDifference difference = paired_difference(paired, beside);
  row.differences[metric] = {difference.mean, difference.half_width, difference.p, std::nullopt};
  return row;
}

// What a study would say of these runs: the last value of a metric by group.
std::vector<StudyRow> rows_of_runs(const ReportInput& input, const std::string& metric) {
  std::vector<StudyRow> rows;
  for (const RunGroup& group : input.groups) rows.push_back(compare(input, group, input.groups[0], metric));
  std::vector<std::optional<double>> p;
  for (const StudyRow& row : rows)
    p.push_back(row.differences.contains(metric) ? row.differences.at(metric).p : std::nullopt);
  const std::vector<double> adjusted = holm(ordered(p));
  size_t next = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    if (p[row]) rows[row].differences[metric].p_holm = adjusted[next++];
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
  if (!blocks.empty() || input.groups.size() < 2 || !any_run_has(input, "val/loss")) return blocks;
  ReportTable table = table_of("val/loss", rows_of_runs(input, "val/loss"));
  table.title = "Last validation loss";
  blocks.push_back({std::move(table)});
  return blocks;
}

}  // namespace dtopp

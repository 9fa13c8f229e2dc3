#include <algorithm>
#include <set>

#include "dtopp/report/document/numbers.h"
#include "dtopp/report/sections/sections.h"

namespace dtopp::report {
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

// Computes the rows that a study of these runs would have.
std::vector<study::StudyRow> rows_of_runs(const ReportInput& input, const std::string& name,
                                          const char* (*metric)(const ReportRun&)) {
  std::vector<study::ValuesBySeed> groups;
  for (const RunGroup& group : input.groups) {
    study::ValuesBySeed& values = groups.emplace_back();
    for (const size_t run : group.runs) {
      const ReportRun& one = input.runs[run];
      values[one.config.training.seed] = study::value_of_run(one.history, metric(one));
    }
  }
  const std::vector<study::Comparison> compared =
      study::compare(groups, std::vector<size_t>(groups.size(), 0));
  std::vector<study::StudyRow> rows;
  for (size_t i = 0; i < groups.size(); ++i)
    rows.push_back({input.groups[i].name, compared[i].values.n, {{name, compared[i]}}, {}});
  return rows;
}

ReportTable table_of(const std::string& measure, const std::vector<study::StudyRow>& rows) {
  ReportTable table{measure, kHead};
  for (const study::StudyRow& row : rows) {
    const auto found = row.measures.find(measure);
    const study::Comparison comparison = found == row.measures.end() ? study::Comparison{} : found->second;
    const study::PairedDifference difference = comparison.difference.value_or(study::PairedDifference{});
    table.rows.push_back(
        {row.name, whole(row.n),
         study::with_diverged(interval(comparison.values.mean, comparison.values.half_width, 4), comparison),
         interval(difference.mean, difference.half_width, 4), probability(difference.p),
         probability(comparison.p_holm)});
  }
  table.note = kNote;
  for (const study::StudyRow& row : rows) {
    for (const std::string& note : row.notes) table.note += " " + row.name + ": " + note + ".";
  }
  return table;
}

}  // namespace

std::vector<ReportBlock> difference_blocks(const ReportInput& input) {
  std::vector<ReportBlock> blocks;
  std::set<std::string> measures;
  for (const study::StudyRow& row : input.study) {
    for (const auto& [measure, comparison] : row.measures) measures.insert(measure);
  }
  for (const std::string& measure : measures) blocks.push_back({table_of(measure, input.study)});
  if (!blocks.empty() || input.groups.size() < 2) return blocks;
  static constexpr std::pair<const char*, const char* (*)(const ReportRun&)> kMeasures[] = {
      {"Last validation loss", [](const ReportRun&) { return "val/loss"; }},
      {"Training loss over the last tenth", main_loss},
      {"Active experts per token over the last tenth",
       [](const ReportRun&) { return "moe/active_experts"; }}};
  for (const auto& [name, metric] : kMeasures) {
    const std::vector<study::StudyRow> rows = rows_of_runs(input, name, metric);
    const auto has_values = [&](const study::StudyRow& row) {
      return row.n > 0 || row.measures.at(name).diverged > 0;
    };
    if (std::ranges::any_of(rows, has_values)) blocks.push_back({table_of(name, rows)});
  }
  return blocks;
}

}  // namespace dtopp::report

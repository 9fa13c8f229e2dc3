#include "dtopp/study/result_files.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/study/tables.h"

namespace dtopp::study {
namespace {

using nlohmann::ordered_json;

ordered_json number(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

ordered_json run_json(const Study& study, const StudyRun& run, const RunRecord& record,
                      const std::vector<RunValue>& values) {
  ordered_json json = {{"variant", study.variants[run.variant].name},
                       {"grid", to_json(study.points[run.point])},
                       {"seed", run.seed},
                       {"path", run.directory.string()},
                       {"status", to_text(record.status)},
                       {"values", ordered_json::object()},
                       {"diverged", ordered_json::array()},
                       {"config_hash", run.hash},
                       {"seconds", record.seconds}};
  for (size_t i = 0; i < values.size(); ++i) {
    json["values"][study.measures[i]] = number(values[i].value);
    if (values[i].diverged) json["diverged"].push_back(study.measures[i]);
  }
  if (!record.cause.empty()) json["cause"] = record.cause;
  return json;
}

ordered_json row_json(const Study& study, const TableRow& row) {
  ordered_json json = {{"variant", study.variants[row.variant].name},
                       {"grid", to_json(study.points[row.point])},
                       {"n", row.n},
                       {"values", ordered_json::object()},
                       {"difference", nullptr},
                       {"notes", row.notes}};
  for (size_t i = 0; i < row.measures.size(); ++i) {
    const Comparison& comparison = row.measures[i];
    json["values"][study.measures[i]] = {{"mean", number(comparison.values.mean)},
                                         {"half_width", number(comparison.values.half_width)},
                                         {"n", comparison.values.n},
                                         {"diverged", comparison.diverged}};
    if (!comparison.difference) continue;
    json["difference"][study.measures[i]] = {{"mean", number(comparison.difference->mean)},
                                             {"half_width", number(comparison.difference->half_width)},
                                             {"p", number(comparison.difference->p)},
                                             {"p_holm", number(comparison.p_holm)},
                                             {"n", comparison.difference->n}};
  }
  return json;
}

ordered_json comparison_json(const ComparisonResult& result) {
  const PlannedComparison& planned = result.planned;
  ordered_json json = {
      {"name", planned.name}, {"of", planned.of}, {"less", planned.less}, {"measure", planned.measure}};
  if (planned.is_ratio()) {
    json["over"] = {{"of", planned.over.of}, {"less", planned.over.less}};
    json["n"] = result.ratio.n;
    json["ratio"] = number(result.ratio.ratio);
    json["low"] = number(result.ratio.low);
    json["high"] = number(result.ratio.high);
  } else {
    const PairedDifference& difference = result.difference;
    json["n"] = difference.n;
    json["mean"] = number(difference.mean);
    json["half_width"] = number(difference.half_width);
    json["std"] = number(difference.standard_deviation);
    json["t"] = number(result.t);
    json["p"] = number(difference.p);
    json["p_holm"] = number(result.p_holm);
  }
  json["verdicts"] = result.verdicts;
  json["note"] = result.note;
  return json;
}

}  // namespace

std::string markdown_results(const Study& study, const StudyResults& results) {
  const std::string table = markdown_table(study, results.rows);
  const std::string comparisons = comparison_table(results.comparisons);
  return comparisons.empty() ? table : table + "\n" + comparisons;
}

std::string study_json(const Study& study, const std::vector<StudyRun>& runs,
                       const std::vector<RunRecord>& records, const StudyResults& results) {
  ordered_json json = {{"study", study.file.string()}, {"measure", study.measures}};
  json["baseline"] = study.variants.front().name;
  json["runs"] = ordered_json::array();
  for (size_t i = 0; i < runs.size(); ++i)
    json["runs"].push_back(run_json(study, runs[i], records[i], results.values[i]));
  json["table"] = ordered_json::array();
  for (const TableRow& row : results.rows) json["table"].push_back(row_json(study, row));
  json["compare"] = ordered_json::array();
  for (const ComparisonResult& result : results.comparisons)
    json["compare"].push_back(comparison_json(result));
  return dump_json(json, 1) + "\n";
}

void write_result_files(const Study& study, const std::vector<StudyRun>& runs,
                        const std::vector<RunRecord>& records, const StudyResults& results) {
  const auto write = [&](const char* name, const std::string& text) {
    write_file_atomically(study.output / name, text);
  };
  write("study.json", study_json(study, runs, records, results));
  write("table.md", markdown_results(study, results));
  write("table.csv", csv_table(study, results.rows));
  write("table.tex", latex_table(study, results.rows));
}

}  // namespace dtopp::study

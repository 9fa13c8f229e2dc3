#include "dtopp/study/results.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/json.h"

namespace dtopp::study {
namespace {

using RunValues = std::vector<std::vector<RunValue>>;

std::vector<std::string> notes_of(const TableRow& row, const std::vector<std::string>& measures,
                                  const std::vector<const ValuesBySeed*>& values) {
  if (row.n == 0) return {"no run is done"};
  std::vector<std::string> notes;
  for (size_t measure = 0; measure < measures.size(); ++measure) {
    const std::string& name = measures[measure];
    if (std::ranges::none_of(*values[measure],
                             [](const auto& of) { return of.second.diverged || of.second.value; })) {
      notes.push_back(name + " is missing in all seeds");
      continue;
    }
    for (const auto& [seed, run] : *values[measure]) {
      if (run.diverged)
        notes.push_back(name + " diverged in seed " + std::to_string(seed));
      else if (!run.value)
        notes.push_back(name + " is missing in seed " + std::to_string(seed));
    }
    const auto& [mean, diverged, difference, p_holm] = row.measures[measure];
    if (mean.n == 1 && row.n > 1) notes.push_back(name + ": a single value has no interval");
    if (!difference) continue;
    if (difference->n == 0) notes.push_back(name + ": no seed in common with the baseline");
    if (difference->n == 1) notes.push_back(name + ": a single pair has no interval");
    if (difference->half_width == 0.0)
      notes.push_back(name + ": all differences are equal, so p is undefined");
  }
  if (row.n == 1) notes.push_back("a single run has no interval");
  return notes;
}

// The number at `key` of a command's result. Null is a number that was not finite.
RunValue value_in(const std::filesystem::path& result, const std::string& key) {
  try {
    const nlohmann::json json = parse_json(read_file(result), result.string());
    const nlohmann::json& value = json.at(nlohmann::json::json_pointer("/" + key));
    if (value.is_null()) return {.diverged = true};
    return {value.get<double>()};
  } catch (const nlohmann::json::exception&) {
    return {};
  } catch (const DataError&) {
    return {};  // the command wrote no result
  }
}

RunValue value_of(const Study& study, const StudyRun& run, const RunRecord& record,
                  const runs::RunHistory& history, const std::string& measure) {
  for (size_t i = 0; i < study.after.size(); ++i) {
    const std::string prefix = study.after[i].name + "/";
    if (!measure.starts_with(prefix)) continue;
    if (i >= commands_done(record, study.after)) return {};
    return value_in(result_of(run, study.after[i]), measure.substr(prefix.size()));
  }
  return value_of_run(history, measure);
}

}  // namespace

std::vector<TableRow> make_rows(const Study& study, const std::vector<StudyRun>& runs,
                                const std::vector<RunRecord>& records, const RunValues& values) {
  const size_t variants = study.variants.size();
  std::vector<TableRow> rows;
  std::vector<size_t> baselines;
  for (size_t i = 0; i < variants * study.points.size(); ++i) {
    rows.push_back({.variant = i % variants, .point = i / variants});
    baselines.push_back(i - i % variants);
  }
  std::vector<std::vector<ValuesBySeed>> by_measure(study.measures.size(),
                                                    std::vector<ValuesBySeed>(rows.size()));
  for (size_t i = 0; i < runs.size(); ++i) {
    if (records[i].status != RunStatus::kDone) continue;
    const size_t row = runs[i].point * variants + runs[i].variant;
    ++rows[row].n;
    for (size_t measure = 0; measure < study.measures.size(); ++measure)
      by_measure[measure][row].emplace(runs[i].seed, values[i][measure]);
  }
  for (const std::vector<ValuesBySeed>& groups : by_measure) {
    const std::vector<Comparison> compared = compare(groups, baselines);
    for (size_t row = 0; row < rows.size(); ++row) rows[row].measures.push_back(compared[row]);
  }
  for (size_t row = 0; row < rows.size(); ++row) {
    std::vector<const ValuesBySeed*> own;
    for (const std::vector<ValuesBySeed>& groups : by_measure) own.push_back(&groups[row]);
    rows[row].notes = notes_of(rows[row], study.measures, own);
  }
  return rows;
}

StudyResults ResultsReader::read(const std::vector<RunRecord>& records,
                                 const std::vector<ComparisonResult>& together) {
  StudyResults results;
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (records[i].status != RunStatus::kDone) {
      results.values.emplace_back(study_.measures.size());
      continue;
    }
    if (const auto given = given_.find(i); given != given_.end()) {
      results.values.push_back(given->second);
      continue;
    }
    const size_t commands = commands_done(records[i], study_.after);
    auto& [known_commands, values] = known_[i];
    if (values.empty() || known_commands != commands) {
      const runs::RunHistory history = runs::read_run_history(metrics_of_run(runs_[i]));
      values.clear();
      for (const std::string& measure : study_.measures)
        values.push_back(value_of(study_, runs_[i], records[i], history, measure));
      known_commands = commands;
    }
    results.values.push_back(values);
  }
  results.rows = make_rows(study_, runs_, records, results.values);
  results.comparisons = compute_comparisons(study_, runs_, records, results.values);
  results.comparisons.insert(results.comparisons.end(), together.begin(), together.end());
  decide(results.comparisons);
  return results;
}

}  // namespace dtopp::study

#include "dtopp/study/results.h"

namespace dtopp {
namespace {

using RunValues = std::vector<std::vector<RunValue>>;

std::vector<std::string> notes_of(const TableRow& row, const std::vector<std::string>& measures,
                                  const std::vector<const ValuesBySeed*>& values) {
  if (row.n == 0) return {"no run is done"};
  std::vector<std::string> notes;
  for (size_t measure = 0; measure < measures.size(); ++measure) {
    const std::string& name = measures[measure];
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

StudyResults ResultsReader::read(const std::vector<RunRecord>& records) {
  StudyResults results;
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (records[i].status != RunStatus::kDone) {
      results.values.emplace_back(study_.measures.size());
      continue;
    }
    auto known = known_.find(i);
    if (known == known_.end()) {
      const RunHistory history = read_run_history(metrics_of_run(runs_[i]));
      known = known_.try_emplace(i).first;
      for (const std::string& measure : study_.measures)
        known->second.push_back(value_of_run(history, measure));
    }
    results.values.push_back(known->second);
  }
  results.rows = make_rows(study_, runs_, records, results.values);
  return results;
}

}  // namespace dtopp

#include "dtopp/study/results.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dtopp {
namespace {

using RunValues = std::vector<std::vector<std::optional<double>>>;

// The runs of one row and the baseline runs at the same grid point, by seed.
struct RowRuns {
  std::map<int64_t, size_t> own, baseline;
};

RowRuns runs_of(size_t variant, size_t point, const std::vector<StudyRun>& runs,
                const std::vector<RunRecord>& records) {
  RowRuns row;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].point != point || records[i].status != RunStatus::kDone) continue;
    if (runs[i].variant == variant) row.own.emplace(runs[i].seed, i);
    if (runs[i].variant == 0) row.baseline.emplace(runs[i].seed, i);
  }
  return row;
}

double or_nan(const std::optional<double>& value) {
  return value.value_or(std::numeric_limits<double>::quiet_NaN());
}

Interval interval_of(const RowRuns& row, const RunValues& values, size_t measure) {
  std::vector<double> own;
  for (const auto& [seed, run] : row.own) own.push_back(or_nan(values[run][measure]));
  return mean_interval(own);
}

PairedDifference difference_of(const RowRuns& row, const RunValues& values, size_t measure) {
  std::vector<double> own, baseline;
  for (const auto& [seed, run] : row.own) {
    const auto other = row.baseline.find(seed);
    if (other == row.baseline.end()) continue;
    own.push_back(or_nan(values[run][measure]));
    baseline.push_back(or_nan(values[other->second][measure]));
  }
  return paired_difference(own, baseline);
}

std::vector<std::string> notes_of(const TableRow& row, const RowRuns& own, const Study& study,
                                  const RunValues& values) {
  std::vector<std::string> notes;
  if (row.n == 0) return {"no run is done"};
  for (size_t measure = 0; measure < study.measures.size(); ++measure) {
    const std::string& name = study.measures[measure];
    for (const auto& [seed, run] : own.own) {
      const auto& value = values[run][measure];
      if (value && std::isfinite(*value)) continue;
      notes.push_back(name + (value ? " is not finite in seed " : " is missing in seed ") +
                      std::to_string(seed));
    }
    if (row.differences.empty()) continue;
    const PairedDifference& difference = row.differences[measure].difference;
    if (difference.n == 0) notes.push_back(name + ": no seed in common with the baseline");
    if (difference.n == 1) notes.push_back(name + ": a single pair has no interval");
    if (difference.half_width == 0.0)
      notes.push_back(name + ": all differences are equal, so p is undefined");
  }
  if (row.n == 1) notes.push_back("a single run has no interval");
  return notes;
}

void adjust(std::vector<TableRow>& rows, size_t measure) {
  std::vector<double> p;
  for (const TableRow& row : rows) {
    if (!row.differences.empty() && row.differences[measure].difference.p)
      p.push_back(*row.differences[measure].difference.p);
  }
  const std::vector<double> adjusted = holm(p);
  size_t next = 0;
  for (TableRow& row : rows) {
    if (!row.differences.empty() && row.differences[measure].difference.p)
      row.differences[measure].p_holm = adjusted[next++];
  }
}

}  // namespace

std::optional<double> value_of_run(const RunHistory& history, const std::string& measure) {
  const auto found = history.series.find(measure);
  if (found == history.series.end() || found->second.values.empty()) return std::nullopt;
  const std::vector<double>& values = found->second.values;
  if (measure.starts_with("val/") || measure.starts_with("eval/")) return values.back();
  const size_t count = std::max<size_t>(1, values.size() / 10);
  double sum = 0;
  for (size_t i = values.size() - count; i < values.size(); ++i) sum += values[i];
  return sum / static_cast<double>(count);
}

std::vector<TableRow> make_rows(const Study& study, const std::vector<StudyRun>& runs,
                                const std::vector<RunRecord>& records, const RunValues& values) {
  std::vector<TableRow> rows;
  for (size_t point = 0; point < study.points.size(); ++point) {
    for (size_t variant = 0; variant < study.variants.size(); ++variant) {
      const RowRuns own = runs_of(variant, point, runs, records);
      TableRow& row = rows.emplace_back(
          TableRow{.variant = variant, .point = point, .n = static_cast<int64_t>(own.own.size())});
      for (size_t measure = 0; measure < study.measures.size(); ++measure) {
        row.values.push_back(interval_of(own, values, measure));
        if (variant > 0) row.differences.push_back({.difference = difference_of(own, values, measure)});
      }
      row.notes = notes_of(row, own, study, values);
    }
  }
  for (size_t measure = 0; measure < study.measures.size(); ++measure) adjust(rows, measure);
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

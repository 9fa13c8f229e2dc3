#include "dtopp/study/verdicts.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "dtopp/base/format.h"
#include "dtopp/study/tables.h"

namespace dtopp::study {
namespace {

constexpr double kLevel = 0.05;

// The values of one measure by variant and seed.
using ValuesByVariant = std::map<std::string, std::map<int64_t, double>>;

ValuesByVariant values_by_variant(const Study& study, const std::vector<StudyRun>& runs,
                                  const std::vector<RunRecord>& records,
                                  const std::vector<std::vector<RunValue>>& values,
                                  const std::string& measure) {
  const auto column =
      static_cast<size_t>(std::ranges::find(study.measures, measure) - study.measures.begin());
  ValuesByVariant all;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (records[i].status != RunStatus::kDone) continue;
    const std::optional<double>& value = values[i].at(column).value;
    if (value) all[study.variants[runs[i].variant].name][runs[i].seed] = *value;
  }
  return all;
}

// The values of several variants at the seeds that all of them have.
std::vector<std::vector<double>> at_common_seeds(const ValuesByVariant& values,
                                                 const std::vector<std::string>& variants) {
  std::vector<std::vector<double>> columns(variants.size());
  const auto first = values.find(variants.front());
  if (first == values.end()) return columns;
  for (const auto& [seed, value] : first->second) {
    std::vector<double> row;
    for (const std::string& variant : variants) {
      const auto own = values.find(variant);
      if (own == values.end() || !own->second.contains(seed)) break;
      row.push_back(own->second.at(seed));
    }
    if (row.size() < variants.size()) continue;
    for (size_t i = 0; i < row.size(); ++i) columns[i].push_back(row[i]);
  }
  return columns;
}

std::vector<double> minus(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> differences(a.size());
  std::ranges::transform(a, b, differences.begin(), std::minus<>{});
  return differences;
}

ComparisonResult compute(const PlannedComparison& planned, const ValuesByVariant& values) {
  ComparisonResult result{.planned = planned};
  std::vector<std::string> variants = {planned.of, planned.less};
  if (planned.is_ratio()) variants.insert(variants.end(), {planned.over.of, planned.over.less});
  const auto columns = at_common_seeds(values, variants);
  const size_t n = columns[0].size();
  if (n == 0) result.note = "no seed is complete";
  if (n == 1) result.note = "a single pair has no interval";
  if (planned.is_ratio()) {
    result.ratio = paired_ratio(minus(columns[0], columns[1]), minus(columns[2], columns[3]));
    if (n > 1 && !result.ratio.low)
      result.note = "unbounded: " + planned.over.of + " minus " + planned.over.less + " may be 0";
    return result;
  }
  result.difference = paired_difference(columns[0], columns[1]);
  const PairedDifference& difference = result.difference;
  if (n > 1 && !difference.p) result.note = "all differences are equal";
  if (difference.p)
    result.t = *difference.mean / (*difference.standard_deviation / std::sqrt(static_cast<double>(n)));
  return result;
}

std::vector<std::string> verdicts_of(const ComparisonResult& result) {
  const PairedDifference& difference = result.difference;
  if (!difference.mean || !difference.half_width) return {};
  const PlannedComparison& planned = result.planned;
  const double low = *difference.mean - *difference.half_width;
  const double high = *difference.mean + *difference.half_width;
  const bool is_significant = result.p_holm && *result.p_holm <= kLevel;
  std::vector<std::string> verdicts;
  if (low > 0 && is_significant) verdicts.push_back(planned.less + " ahead of " + planned.of);
  if (high < 0 && is_significant) verdicts.push_back(planned.less + " behind " + planned.of);
  if (planned.margin > 0 && -planned.margin < low && high < planned.margin)
    verdicts.push_back("equivalent within " + format("%g", planned.margin));
  if (planned.excluded > 0 && high < planned.excluded)
    verdicts.push_back("a lead of " + format("%g", planned.excluded) + " is excluded");
  if (verdicts.empty()) verdicts.emplace_back("inconclusive");
  return verdicts;
}

std::string joined_verdicts(const ComparisonResult& result) {
  std::string text;
  for (const std::string& verdict : result.verdicts) text += (text.empty() ? "" : "; ") + verdict;
  if (!result.note.empty()) text += (text.empty() ? "" : "; ") + result.note;
  return text;
}

std::string ratio_text(const RatioInterval& ratio) {
  if (!ratio.ratio) return "";
  std::string text = format("%.3g", *ratio.ratio);
  if (ratio.low) text += format(" [%.3g, %.3g]", *ratio.low, *ratio.high);
  return text;
}

// "top-k minus dtop-p", or "(top-k minus dtop-p) / (dense minus top-k)"
std::string formula_of(const PlannedComparison& planned) {
  std::string difference = planned.of + " minus " + planned.less;
  if (!planned.is_ratio()) return difference;
  return "(" + difference + ") / (" + planned.over.of + " minus " + planned.over.less + ")";
}

}  // namespace

std::vector<ComparisonResult> compute_comparisons(const Study& study, const std::vector<StudyRun>& runs,
                                                  const std::vector<RunRecord>& records,
                                                  const std::vector<std::vector<RunValue>>& values) {
  std::vector<ComparisonResult> results;
  for (const PlannedComparison& planned : study.compare)
    results.push_back(compute(planned, values_by_variant(study, runs, records, values, planned.measure)));
  return results;
}

void decide(std::vector<ComparisonResult>& results) {
  std::map<std::string, std::vector<ComparisonResult*>> families;
  for (ComparisonResult& result : results) {
    if (!result.planned.family.empty()) families[result.planned.family].push_back(&result);
  }
  for (const auto& [family, members] : families) {
    std::vector<double> p;
    for (const ComparisonResult* result : members) p.push_back(result->difference.p.value_or(1));
    const std::vector<double> adjusted = holm(p);
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i]->difference.p) members[i]->p_holm = adjusted[i];
      members[i]->verdicts = verdicts_of(*members[i]);
    }
  }
}

std::string comparison_table(const std::vector<ComparisonResult>& results) {
  if (results.empty()) return "";
  std::string text =
      "| comparison | of | measure | n | result | std | t | p | p (Holm) | verdict |\n"
      "|---|---|---|---:|---:|---:|---:|---:|---:|---|\n";
  for (const ComparisonResult& result : results) {
    const PlannedComparison& planned = result.planned;
    const PairedDifference& difference = result.difference;
    const auto number = [](const std::optional<double>& value, const char* pattern) {
      return value ? format(pattern, *value) : std::string();
    };
    const std::vector<std::string> cells = {
        planned.name,
        formula_of(planned),
        planned.measure,
        std::to_string(planned.is_ratio() ? result.ratio.n : difference.n),
        planned.is_ratio() ? ratio_text(result.ratio)
                           : with_half_width(difference.mean, difference.half_width, true),
        number(difference.standard_deviation, "%.2g"),
        number(result.t, "%.2f"),
        p_text(difference.p),
        p_text(result.p_holm),
        joined_verdicts(result)};
    text += "| " + markdown_cells(cells) + " |\n";
  }
  return text +
         "\nDifferences are taken seed by seed, ± the half-width of the 95 % interval; brackets: Fieller's "
         "interval. p (Holm) is adjusted within the family.\n";
}

std::string blind_text(const std::vector<ComparisonResult>& results) {
  std::string text;
  for (const ComparisonResult& result : results) {
    if (result.planned.is_ratio()) continue;
    const PairedDifference& difference = result.difference;
    text += result.planned.name + ": n " + std::to_string(difference.n);
    if (difference.standard_deviation)
      text += format(", standard deviation of the paired differences %.4g", *difference.standard_deviation);
    text += "\n";
  }
  return text;
}

}  // namespace dtopp::study

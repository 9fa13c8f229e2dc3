#include "dtopp/study/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace dtopp::study {
namespace {

PairedDifference difference_of(const ValuesBySeed& group, const ValuesBySeed& baseline) {
  std::vector<double> values, paired;
  for (const auto& [seed, run] : group) {
    const auto other = baseline.find(seed);
    if (!run.value || other == baseline.end() || !other->second.value) continue;
    values.push_back(*run.value);
    paired.push_back(*other->second.value);
  }
  return paired_difference(values, paired);
}

// A validation, or a count of all steps so far.
bool is_of_last_line(std::string_view measure) {
  constexpr std::array<std::string_view, 4> kSoFar = {"train/active_flops", "train/active_experts_mean",
                                                      "train/skipped_steps", "throughput/seconds"};
  return measure.starts_with("val/") || measure.starts_with("eval/") ||
         std::ranges::find(kSoFar, measure) != kSoFar.end();
}

}  // namespace

RunValue value_of_run(const runs::RunHistory& history, const std::string& measure) {
  const auto found = history.series.find(measure);
  if (found == history.series.end() || found->second.values.empty()) return {};
  const std::vector<double>& values = found->second.values;
  if (!std::isfinite(values.back())) return {.diverged = true};
  if (is_of_last_line(measure)) return {values.back()};
  double sum = 0, count = 0;
  for (size_t i = values.size() - std::max<size_t>(1, values.size() / 10); i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    sum += values[i];
    ++count;
  }
  return {sum / count};
}

std::vector<Comparison> compare(const std::vector<ValuesBySeed>& groups,
                                const std::vector<size_t>& baselines) {
  std::vector<Comparison> comparisons(groups.size());
  std::vector<size_t> tested;
  std::vector<double> p;
  for (size_t i = 0; i < groups.size(); ++i) {
    std::vector<double> values;
    for (const auto& [seed, run] : groups[i]) {
      if (run.value) values.push_back(*run.value);
      if (run.diverged) ++comparisons[i].diverged;
    }
    comparisons[i].values = mean_interval(values);
    if (baselines[i] == i) continue;
    const auto& difference = comparisons[i].difference = difference_of(groups[i], groups[baselines[i]]);
    if (!difference->p) continue;
    tested.push_back(i);
    p.push_back(*difference->p);
  }
  const std::vector<double> adjusted = holm(p);
  for (size_t i = 0; i < tested.size(); ++i) comparisons[tested[i]].p_holm = adjusted[i];
  return comparisons;
}

std::string with_diverged(const std::string& text, const Comparison& comparison) {
  if (comparison.diverged == 0) return text;
  if (!comparison.values.mean) return "diverged";
  return text + " (" + std::to_string(comparison.diverged) + " diverged)";
}

}  // namespace dtopp::study

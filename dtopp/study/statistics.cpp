#include "dtopp/study/statistics.h"

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include <boost/math/distributions/students_t.hpp>

namespace dtopp::study {
namespace {

constexpr double kOutside = 0.05;

struct Moments {
  double mean = 0;
  double error = 0;  // standard error of the mean; 0 for fewer than two values
};

// Shifts by the first value, so that equal values give exactly that mean and an error of 0.
Moments moments_of(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value - values.front();
  const double shift = sum / n;
  double squares = 0;
  for (const double value : values) squares += std::pow(value - values.front() - shift, 2);
  const double error = values.size() < 2 ? 0 : std::sqrt(squares / (n - 1) / n);
  return {values.front() + shift, error};
}

bool all_finite(std::span<const double> values) {
  return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
}

boost::math::students_t distribution_of(size_t n) {
  return boost::math::students_t(static_cast<double>(n - 1));
}

double quantile_of(size_t n) {
  return boost::math::quantile(boost::math::complement(distribution_of(n), kOutside / 2));
}

double largest(std::span<const double> values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

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

Interval mean_interval(std::span<const double> values) {
  Interval interval{.n = std::ssize(values)};
  if (values.empty() || !all_finite(values)) return interval;
  const Moments moments = moments_of(values);
  interval.mean = moments.mean;
  if (values.size() > 1) interval.half_width = moments.error * quantile_of(values.size());
  return interval;
}

PairedDifference paired_difference(std::span<const double> values, std::span<const double> baseline) {
  if (values.size() != baseline.size())
    throw std::invalid_argument("paired_difference: " + std::to_string(values.size()) + " values, but " +
                                std::to_string(baseline.size()) + " of the baseline");
  PairedDifference difference{.n = std::ssize(values)};
  if (values.empty() || !all_finite(values) || !all_finite(baseline)) return difference;
  std::vector<double> differences(values.size());
  std::ranges::transform(values, baseline, differences.begin(), std::minus<>{});
  const Moments moments = moments_of(differences);
  difference.mean = moments.mean;
  if (values.size() < 2) return difference;
  difference.standard_deviation = moments.error * std::sqrt(static_cast<double>(values.size()));
  // A value parsed from decimal digits has an error of half a unit in its last place, which the difference
  // inherits.
  const double rounding =
      2 * std::numeric_limits<double>::epsilon() * std::max(largest(values), largest(baseline));
  if (moments.error <= rounding) {
    difference.half_width = 0;
    return difference;
  }
  difference.half_width = moments.error * quantile_of(values.size());
  const double t = std::abs(moments.mean) / moments.error;
  difference.p = 2 * boost::math::cdf(boost::math::complement(distribution_of(values.size()), t));
  return difference;
}

RatioInterval paired_ratio(std::span<const double> numerator, std::span<const double> denominator) {
  if (numerator.size() != denominator.size())
    throw std::invalid_argument("paired_ratio: " + std::to_string(numerator.size()) + " numerators, but " +
                                std::to_string(denominator.size()) + " denominators");
  RatioInterval interval{.n = std::ssize(numerator)};
  if (numerator.empty() || !all_finite(numerator) || !all_finite(denominator)) return interval;
  const Moments above = moments_of(numerator), below = moments_of(denominator);
  if (below.mean == 0) return interval;
  interval.ratio = above.mean / below.mean;
  const size_t n = numerator.size();
  if (n < 2) return interval;
  double covariance = 0;  // of the two means
  for (size_t i = 0; i < n; ++i)
    covariance += (numerator[i] - above.mean) * (denominator[i] - below.mean) /
                  (static_cast<double>(n - 1) * static_cast<double>(n));
  // The ratios r at which mean(numerator - r denominator) does not differ from 0: a r^2 - 2 b r + c <= 0.
  const double q = std::pow(quantile_of(n), 2);
  const double a = std::pow(below.mean, 2) - q * std::pow(below.error, 2);
  const double b = above.mean * below.mean - q * covariance;
  const double c = std::pow(above.mean, 2) - q * std::pow(above.error, 2);
  if (a <= 0) return interval;
  const double root = std::sqrt(std::max(0.0, b * b - a * c));
  interval.low = (b - root) / a;
  interval.high = (b + root) / a;
  return interval;
}

std::vector<double> holm(const std::vector<double>& p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return p[i]; });
  std::vector<double> adjusted(p.size());
  double largest_so_far = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const double scaled = p[order[rank]] * static_cast<double>(p.size() - rank);
    largest_so_far = std::max(largest_so_far, std::min(1.0, scaled));
    adjusted[order[rank]] = largest_so_far;
  }
  return adjusted;
}

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

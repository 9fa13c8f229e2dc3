// Computes means and paired differences with 95 % confidence intervals, and p-values adjusted for multiple
// comparisons.
//
// Intervals are Student's t. With a handful of values, a percentile bootstrap covers the mean in only 75 to
// 91 % of cases instead of 95 %.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace dtopp::study {

// A confidence interval: mean ± half_width, from `n` values. `mean` is nullopt if there is no value or one is
// not finite. `half_width` is nullopt then and for a single value.
struct Interval {
  std::optional<double> mean{};
  std::optional<double> half_width{};
  int64_t n = 0;
};
Interval mean_interval(std::span<const double> values);

// The result of a paired t test. `p` is two-sided: the probability of a mean difference at least as far from
// 0 if the true difference is 0.
struct PairedDifference {
  std::optional<double> mean{};  // mean of value − baseline
  std::optional<double> half_width{};
  std::optional<double> p{};
  int64_t n = 0;                               // number of pairs
  std::optional<double> standard_deviation{};  // of the differences
};
// Compares the pairs (values[i], baseline[i]). If the differences vary by no more than rounding, `half_width`
// is 0 and `p` is nullopt. Throws std::invalid_argument if the sizes differ.
PairedDifference paired_difference(std::span<const double> values, std::span<const double> baseline);

// The ratio of two paired mean differences with its 95 % interval, which need not be symmetric. `low` and
// `high` are nullopt if the denominator does not differ from 0 at that level: the interval is unbounded then.
//
// Source: Fieller 1954
struct RatioInterval {
  std::optional<double> ratio{}, low{}, high{};
  int64_t n = 0;
};
// Compares mean(numerator) with mean(denominator). Throws std::invalid_argument if the sizes differ.
RatioInterval paired_ratio(std::span<const double> numerator, std::span<const double> denominator);

// Returns p-values adjusted for their number, in the same order. If values up to 0.05 count as significant,
// the probability of at least one false positive is at most 5 %.
//
// Source: Holm 1979
std::vector<double> holm(const std::vector<double>& p);

}  // namespace dtopp::study

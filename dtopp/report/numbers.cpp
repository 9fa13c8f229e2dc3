#include "dtopp/report/numbers.h"

#include <array>

#include "dtopp/base/format.h"

namespace dtopp::report {
namespace {

constexpr char kNone[] = "–";

std::string with_minus(std::string text) {
  if (text.starts_with('-')) text.replace(0, 1, "−");
  return text;
}

}  // namespace

std::string fixed(double value, int digits) {
  if (!std::isfinite(value)) return kNone;
  // A difference that rounds to zero has no sign.
  if (std::abs(value) < 0.5 * std::pow(10, -digits)) value = 0;
  return with_minus(format("%.*f", digits, value));
}

std::string scaled(double value) {
  static constexpr std::array<std::pair<double, const char*>, 5> kUnits = {
      {{1e18, " E"}, {1e15, " P"}, {1e12, " T"}, {1e9, " G"}, {1e6, " M"}}};
  if (!std::isfinite(value)) return kNone;
  for (const auto& [unit, suffix] : kUnits)
    if (std::abs(value) >= unit) return with_minus(format("%.4g", value / unit)) + suffix;
  if (std::abs(value) >= 1e3) return whole(std::llround(value));
  return with_minus(format("%.4g", value));
}

std::string whole(int64_t value) {
  std::string text = std::to_string(value);
  const auto digits = static_cast<std::ptrdiff_t>(value < 0);
  for (auto i = static_cast<std::ptrdiff_t>(text.size()) - 3; i > digits; i -= 3)
    text.insert(static_cast<size_t>(i), ",");
  return with_minus(text);
}

std::string count_of(size_t n, const std::string& noun) {
  return whole(static_cast<int64_t>(n)) + " " + noun + (n == 1 ? "" : "s");
}

std::string interval(const std::optional<double>& mean, const std::optional<double>& half_width, int digits) {
  if (!mean) return kNone;
  return fixed(*mean, digits) + (half_width ? " ± " + fixed(*half_width, digits) : "");
}

}  // namespace dtopp::report

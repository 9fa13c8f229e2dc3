// Formats numbers for the texts and tables of a report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dtopp::report {
// "5.0861"; "–" if the value is not finite.
std::string fixed(double value, int digits);
// Four significant digits, and a unit from one million: "12,345", "1.075 M", "53.2 G", "0.0002".
std::string scaled(double value);
// "1,075,200"
std::string whole(int64_t value);
// "3 runs", "1 run"
std::string count_of(size_t n, const std::string& noun);
// "5.0861 ± 0.0123"; "5.0861" without a half-width; "–" without a mean.
std::string interval(const std::optional<double>& mean, const std::optional<double>& half_width, int digits);

}  // namespace dtopp::report

// Numbers as the texts and tables of a report have them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dtopp/runs/run_history.h"
#include "dtopp/study/statistics.h"

namespace dtopp::report_text {

// "5.0861"; "–" for what is not finite.
std::string fixed(double value, int digits);
// With four significant digits, from a million on with a unit: "12,345", "1.075 M", "53.2 G", "0.0002".
std::string scaled(double value);
// "1,075,200"
std::string whole(int64_t value);
// "3 runs", "1 run"
std::string count_of(size_t n, const std::string& noun);
// "5.0861 ± 0.0123"; without what cannot be computed.
std::string interval(const std::optional<double>& mean, const std::optional<double>& half_width, int digits);

}  // namespace dtopp::report_text

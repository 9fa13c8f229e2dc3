// A study's table as text: a row for each variant at each grid point; for each measure mean ± half-width of
// the 95 % interval and, where there are several variants, the difference from the baseline with its p. A
// number that could not be computed is left blank.
#pragma once

#include <string>
#include <vector>

#include "dtopp/study/results.h"

namespace dtopp {

// With the reasons for what is blank below it.
std::string markdown_table(const Study& study, const std::vector<TableRow>& rows);

// RFC 4180, lines end in \n; numbers in full, each in a column of its own.
std::string csv_table(const Study& study, const std::vector<TableRow>& rows);

// A tabular of LaTeX's own rules: it needs no package.
std::string latex_table(const Study& study, const std::vector<TableRow>& rows);

// "3.142 ± 0.021": two digits of the half-width, and as many decimals of the mean; six digits of a mean
// without one.
std::string with_half_width(const std::optional<double>& mean, const std::optional<double>& half_width,
                            bool with_sign = false);

}  // namespace dtopp

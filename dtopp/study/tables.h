// Formats the table of a study as Markdown, CSV and LaTeX.
//
// The table has one row per variant and grid point. Each measure has a column of mean ± half-width (95 %
// interval). With several variants it also has columns of the difference from the baseline and of p. A number
// that cannot be computed is left blank.
#pragma once

#include <string>
#include <vector>

#include "dtopp/study/results.h"

namespace dtopp::study {

// Returns a Markdown table, followed by the reasons for blank cells.
std::string markdown_table(const Study& study, const std::vector<TableRow>& rows);

// Returns CSV (RFC 4180 with lines that end in \n). Each number has its own column and full precision.
std::string csv_table(const Study& study, const std::vector<TableRow>& rows);

// Returns a LaTeX tabular that needs no package.
std::string latex_table(const Study& study, const std::vector<TableRow>& rows);

// Returns, for example, "3.142 ± 0.021": the half-width with two significant digits and the mean with as many
// decimals. Without a half-width the mean has six significant digits.
std::string with_half_width(const std::optional<double>& mean, const std::optional<double>& half_width,
                            bool with_sign = false);

// Returns a p-value with three decimals, "< 0.001" below them, or nothing without a value.
std::string p_text(const std::optional<double>& p);

// Returns the cells, escaped, with " | " between them.
std::string markdown_cells(const std::vector<std::string>& cells);

}  // namespace dtopp::study

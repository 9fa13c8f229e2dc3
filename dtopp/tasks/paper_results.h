// What the paper reports for its models of 1.3 billion active parameters after 100 billion tokens.
#pragma once

#include <array>
#include <string_view>

namespace dtopp {

inline constexpr std::array<std::string_view, 4> kPaperModels = {"Dense", "Top-k", "Top-p", "DTop-p"};

// Percentages in the order of kPaperModels; `task` as on the command line, or "average". std::out_of_range
// for any other.
std::array<double, 4> paper_results(std::string_view task);

}  // namespace dtopp

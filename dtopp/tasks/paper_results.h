// What the paper's table of main results holds.
#pragma once

#include <array>
#include <string_view>

namespace dtopp {

inline constexpr std::array<std::string_view, 4> kPaperModels = {"Dense", "Top-k", "Top-p", "DTop-p"};

// What these columns are of.
inline constexpr char kPaperSetting[] =
    "Dense-1.3B, and MoE-1.3B-6.9B-64E8A routed by top-k, top-p and DTop-p, each after 100 billion tokens";

// Percentages in the order of kPaperModels; `task` as on the command line, or "average". std::out_of_range
// for any other.
std::array<double, 4> paper_results(std::string_view task);

}  // namespace dtopp

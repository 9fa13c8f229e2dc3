// Provides the numbers of the paper's table of main results.
#pragma once

#include <array>
#include <string_view>

namespace dtopp::tasks {

inline constexpr std::array<std::string_view, 4> kPaperModels = {"Dense", "Top-k", "Top-p", "DTop-p"};

// The models and the training behind these columns.
inline constexpr char kPaperSetting[] =
    "Dense-1.3B, and MoE-1.3B-6.9B-64E8A routed by top-k, top-p and DTop-p, each after 100 billion tokens";

// Percentages in the order of kPaperModels. `task` is a name as on the command line, or "average". Throws
// std::out_of_range for any other name.
std::array<double, 4> paper_results(std::string_view task);

}  // namespace dtopp::tasks

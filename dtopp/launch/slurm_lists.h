// Parses the compressed lists in Slurm's environment variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtopp::launch {

// The first host of SLURM_STEP_NODELIST: "gpu003" for "gpu[003-006,9],cpu1". nullopt if it is not such a
// list.
std::optional<std::string> first_host(std::string_view hosts);

// The number of tasks of the step on node `node`, counted from 0, by SLURM_STEP_TASKS_PER_NODE: 3 for node 2
// of "4(x2),3". nullopt if it is not such a list or has too few nodes.
std::optional<int64_t> tasks_on_node(std::string_view tasks, int64_t node);

}  // namespace dtopp::launch

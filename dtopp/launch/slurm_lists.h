// The compressed lists in Slurm's environment variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtopp {

// The first host of SLURM_STEP_NODELIST: "gpu003" of "gpu[003-006,9],cpu1". Nothing where it is no such list.
std::optional<std::string> first_host(std::string_view hosts);

// How many tasks SLURM_STEP_TASKS_PER_NODE gives the step's node `node`, counted from 0: 3 for node 2 of
// "4(x2),3". Nothing where it is no such list or ends before.
std::optional<int64_t> tasks_on_node(std::string_view tasks, int64_t node);

// The number that is the whole of `text`, in digits.
std::optional<int64_t> whole_number(std::string_view text);

}  // namespace dtopp

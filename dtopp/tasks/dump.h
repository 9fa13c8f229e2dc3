// Writes the prompts and the answers as JSON Lines, one item per line (docs/reference/scoring.md).
#pragma once

#include <span>
#include <string>

#include "dtopp/base/files.h"
#include "dtopp/tasks/answers.h"
#include "dtopp/tasks/task_requests.h"

namespace dtopp::tasks {

// One line without its newline: the prompts of an item and the model's results. The pointers are null if no
// model ran.
std::string dump_line(const Task& task, const DataSet& data, const Request& request, const Scores* scores,
                      const Answer* answer);

// Writes the lines of all prompts, without results.
void write_prompts(OutputFile& file, std::span<const TaskRequests> tasks);

}  // namespace dtopp::tasks

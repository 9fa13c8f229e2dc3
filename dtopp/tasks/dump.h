// What was asked and answered, item by item, as JSON Lines (docs/evaluation.md).
#pragma once

#include <span>
#include <string>

#include "dtopp/base/files.h"
#include "dtopp/tasks/answers.h"
#include "dtopp/tasks/task_requests.h"

namespace dtopp {

// One line, without its end: the prompts of an item and, where a model ran, what came of them. Null pointers:
// no model ran.
std::string dump_line(const Task& task, const DataSet& data, const Request& request, const Scores* scores,
                      const Answer* answer);

// The lines of all prompts, without any model.
void write_prompts(OutputFile& file, std::span<const TaskRequests> tasks);

}  // namespace dtopp

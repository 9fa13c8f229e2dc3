// Prepares all requests of a task before the first forward pass. A missing file or a model with too short
// sequences is thus detected at once.
#pragma once

#include "dtopp/base/files.h"
#include "dtopp/tasks/prompts.h"
#include "dtopp/tasks/task.h"

namespace dtopp::tasks {
struct TaskRequests {
  Task task;
  std::vector<DataSet> data_sets;              // complete, even if `limit` cuts the requests
  std::vector<std::vector<Request>> requests;  // per data set: requests for its first items
};

// Calls load_task and make_requests for each data set. Errors name the task's file.
TaskRequests prepare_requests(const Task& task, const fs::path& directory, const data::Tokenizer& tokenizer,
                              int64_t limit);

struct PromptCounts {
  int64_t items = 0;
  int64_t sequences = 0;      // one per choice, as the harness counts
  int64_t cut_sequences = 0;  // sequences that lost tokens to kMaxPromptTokens
  int64_t tokens = 0;         // over all sequences
  int64_t longest = 0;        // tokens of the longest sequence, generated ones included
};

PromptCounts count_prompts(const TaskRequests& requests);

// A task with a prompt longer than the model's sequences. It is not evaluated: the model has not learned
// positions beyond its training length, and cut prompts would give a score that is not comparable with
// others.
struct LongTask {
  Task task;
  int64_t longest = 0;          // tokens
  int64_t sequence_length = 0;  // of the model
};

// Removes the tasks that do not fit from `tasks` and returns them. `names` is the list that the user wrote.
//
// Throws:        UsageError if `names` lists a task that does not fit by its own name rather than by "all",
//                or if no task fits
std::vector<LongTask> take_out_long_tasks(std::vector<TaskRequests>& tasks, std::string_view names,
                                          int64_t sequence_length);

// Writes the prompts and the answers as JSON Lines, one item per line (docs/reference/scoring.md).

// One line without its newline: the prompts of an item and the model's results. The pointers are null if no
// model ran.
std::string dump_line(const Task& task, const DataSet& data, const Request& request, const Scores* scores,
                      const Answer* answer);

// Writes the lines of all prompts, without results.
void write_prompts(OutputFile& file, std::span<const TaskRequests> tasks);

}  // namespace dtopp::tasks

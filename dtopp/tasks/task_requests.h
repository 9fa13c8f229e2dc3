// All that a model is asked for one task, ready before the first forward pass: a missing file or a model that
// is too short shows at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "dtopp/tasks/prompts.h"

namespace dtopp {

struct TaskRequests {
  Task task;
  std::vector<DataSet> data_sets;              // whole
  std::vector<std::vector<Request>> requests;  // of the first items of each data set
};

// load_task and make_requests for each data set; their errors name the task's file here.
TaskRequests prepare_requests(const Task& task, const std::filesystem::path& directory,
                              const Tokenizer& tokenizer, int64_t limit);

struct PromptCounts {
  int64_t items = 0;
  int64_t sequences = 0;      // one a choice, as the harness counts
  int64_t cut_sequences = 0;  // that lost tokens to kMaxPromptTokens
  int64_t tokens = 0;         // of all sequences
  int64_t longest = 0;        // tokens of a sequence, generated ones included
};

PromptCounts count_prompts(const TaskRequests& requests);

// A task with a prompt that is longer than the model's sequences. It is not put to the model: positions
// beyond the length it was trained with are none it has learned, and cutting the prompts to that length would
// give a score that compares with nobody's.
struct LongTask {
  Task task;
  int64_t longest = 0;          // tokens
  int64_t sequence_length = 0;  // of the model
};

// Takes out of `tasks` those that do not fit, and answers which. `names` is what the user asked for:
// UsageError where a task that does not fit is named there itself, not by "all", and where nothing fits.
std::vector<LongTask> take_out_long_tasks(std::vector<TaskRequests>& tasks, std::string_view names,
                                          int64_t sequence_length);

}  // namespace dtopp

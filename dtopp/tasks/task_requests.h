// All that a model is asked for one task, ready before the first forward pass: a missing file or a model that
// is too short shows at once.
#pragma once

#include <cstdint>
#include <filesystem>
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

// UsageError where a sequence is longer than `sequence_length`: a model has not learned positions beyond the
// length it was trained with, and cutting the prompts to it would give a score that compares with nobody's.
void require_sequence_length(const TaskRequests& requests, int64_t sequence_length);

}  // namespace dtopp

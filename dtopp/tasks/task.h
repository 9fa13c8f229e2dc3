// The 13 language tasks of the DTop-p paper, with the settings of DCLM's evaluation and the paper's shots.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp {

enum class TaskType {
  kMultipleChoice,    // one context, one continuation a choice: the likeliest a token wins
  kSchema,            // one context a choice, one continuation: partial evaluation
  kLanguageModeling,  // every token of the continuation must be the likeliest
  kGeneration,        // greedy text, from which the answer is extracted
};

struct Task {
  std::string_view name;   // of its file, <name>.jsonl.zst, and on the command line
  std::string_view title;  // in the paper's tables
  std::string_view area;   // one of the paper's five fields
  TaskType type = TaskType::kMultipleChoice;
  int64_t shots = 0;
  std::string_view prelimiter;
  std::string_view continuation_delimiter;
  int64_t num_choices = 0;   // of every item; 0 where there are none
  bool by_category = false;  // each category is a data set of its own; the score is their unweighted mean
  std::string_view sha256;   // of the uncompressed file

  // The accuracy of guessing.
  double chance() const { return num_choices > 0 ? 1.0 / static_cast<double>(num_choices) : 0; }
};

// In the order of the paper's tables.
std::span<const Task> all_tasks();

// The tasks that "all" or "copa,arc_easy" names, each once, in the order of all_tasks(). UsageError for an
// unknown or an empty name.
std::vector<Task> select_tasks(std::string_view names);

// Whether `names` names the task itself, not by "all".
bool names_task(std::string_view names, const Task& task);

}  // namespace dtopp

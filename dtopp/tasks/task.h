// Defines the 13 language tasks of the DTop-p paper, with the settings of DCLM's evaluation and the paper's
// shots.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp::tasks {

enum class TaskType {
  kMultipleChoice,    // one context, one continuation per choice: the most likely per token wins
  kSchema,            // one context per choice, one continuation: partial evaluation
  kLanguageModeling,  // every token of the continuation must be the most likely one
  kGeneration,        // greedy text, from which the answer is extracted
};

struct Task {
  std::string_view name;   // name of its file, <name>.jsonl.zst, and on the command line
  std::string_view title;  // name in the paper's tables
  std::string_view area;   // one of the paper's five fields
  TaskType type = TaskType::kMultipleChoice;
  int64_t shots = 0;
  std::string_view prelimiter;              // before each question
  std::string_view continuation_delimiter;  // between question and answer
  int64_t num_choices = 0;                  // choices per item; 0 if there are none
  bool by_category = false;  // each category is a separate data set; the score is their unweighted mean
  // The items that scores are comparable for: their digest (digest_items), or the git blob id of
  // llm-foundry's file, if its items have another digest.
  std::string_view items_sha256;
  std::string_view file_blob_id = {};

  // The accuracy of a random guess.
  double chance() const { return num_choices > 0 ? 1.0 / static_cast<double>(num_choices) : 0; }
};

// All tasks, in the order of the paper's tables.
std::span<const Task> all_tasks();

// The tasks named by a list such as "all" or "copa,arc_easy", each once, in the order of all_tasks(). Throws
// UsageError for an unknown or empty name.
std::vector<Task> select_tasks(std::string_view names);

// True if `names` lists the task itself, not only "all".
bool names_task(std::string_view names, const Task& task);

}  // namespace dtopp::tasks

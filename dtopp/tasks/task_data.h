// Reads the items of a task from its file: JSON Lines, one item per line, in the format of llm-foundry's
// data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "dtopp/tasks/task.h"

namespace dtopp::tasks {

// The strings of one item. White space at their ends is stripped, except in `choices`.
struct TaskItem {
  std::string question;              // multiple choice: query; language modelling, generation: context
  std::vector<std::string> choices;  // multiple choice: choices; schema: context_options
  std::string continuation;          // schema, language modelling
  std::string worked_answer;         // generation: chain of thought, " #### ", answer
  std::string answer;                // generation
  std::string raw_worked_answer;     // worked_answer with its white space, for answer_budget
  int64_t gold = 0;                  // index of the right choice

  bool operator==(const TaskItem&) const = default;
};

// The items of a task or category; they serve as examples for each other.
struct DataSet {
  std::string category;  // MMLU only, else empty
  std::vector<TaskItem> items;
};

// The separator between a chain of thought and the answer.
inline constexpr std::string_view kAnswerMark = " #### ";

// The SHA-256 of everything that scores depend on: categories and items in order, without the form of the
// file.
std::string digest_items(std::span<const DataSet> data_sets);

struct TaskFile {
  std::vector<DataSet> data_sets;  // by category, in byte order
  std::string blob_id;             // git's, of the uncompressed bytes
};

// Reads any .jsonl, .jsonl.zst or .jsonl.gz file.
//
// Throws:        DataError with file and line, if a field is missing, empty or of another type, `gold` is not
//                a valid choice, or the number of choices differs from the task's
TaskFile read_task_file(const Task& task, const std::filesystem::path& path);

// Reads the task's file in `directory`.
//
// Throws:        DataError as above, and if the file is missing or its items are not the task's: scores on
//                other items would not be comparable
std::vector<DataSet> load_task(const Task& task, const std::filesystem::path& directory);

}  // namespace dtopp::tasks

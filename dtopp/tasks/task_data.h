// The items of a task, read from its file: JSON Lines, one item a line, in the form of llm-foundry's data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dtopp/tasks/task.h"

namespace dtopp {

// White space at the ends of every string is gone, save in `choices`.
struct TaskItem {
  std::string question;              // multiple choice: query; language modelling, generation: context
  std::vector<std::string> choices;  // multiple choice: choices; schema: context_options
  std::string continuation;          // schema, language modelling
  std::string worked_answer;         // generation: chain of thought, " #### ", answer
  std::string answer;                // generation
  std::string raw_worked_answer;     // worked_answer with its white space, for the answer budget
  int64_t gold = 0;                  // index of the right choice

  bool operator==(const TaskItem&) const = default;
};

// Items that serve each other as examples.
struct DataSet {
  std::string category;  // of MMLU, else empty
  std::vector<TaskItem> items;
};

// What stands between a chain of thought and the answer.
inline constexpr std::string_view kAnswerMark = " #### ";

struct TaskFile {
  std::vector<DataSet> data_sets;  // by category, in byte order
  std::string sha256;              // of the uncompressed bytes
};

// Any .jsonl, .jsonl.zst or .jsonl.gz. DataError naming file and line where a field is missing, empty or of
// another type, where `gold` is no choice or where the choices are not as many as the task's.
TaskFile read_task_file(const Task& task, const std::filesystem::path& path);

// The task's file in `directory`. DataError as above, and where the file is not there or its bytes are not
// those that the task's checksum names: scores on other items would not compare with anybody's.
std::vector<DataSet> load_task(const Task& task, const std::filesystem::path& directory);

}  // namespace dtopp

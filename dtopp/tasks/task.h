// Defines the 13 language tasks of the DTop-p paper, with the settings of DCLM's evaluation and the paper's
// shots.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
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

// Reads the items of a task from its file: JSON Lines, one item per line, in the format of llm-foundry's
// data.

// The strings of one item. White space at their ends is stripped, except in `choices`.
struct TaskItem {
  std::string question;              // multiple choice: query; language modelling, generation: context
  std::vector<std::string> choices;  // multiple choice: choices; schema: context_options
  std::string continuation;          // schema, language modelling
  std::string worked_answer;         // generation: chain of thought, " #### ", answer
  std::string answer;                // generation
  std::string raw_worked_answer;     // worked_answer with its white space, for the longest answer
  int64_t gold = 0;                  // index of the right choice

  bool operator==(const TaskItem&) const = default;
};

// The items of a task or category; they serve as examples for each other.
struct DataSet {
  std::string category;  // MMLU only, else empty
  std::vector<TaskItem> items;
};

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

// Derives an answer, right or wrong, from what a model computed for a request.

// The output of a model for one Request.
struct Scores {
  // log p of each token of each continuation, in nats. The softmax is over the model's whole vocabulary, in
  // fp32.
  std::vector<std::vector<float>> log_probs;
  // Per continuation: true if each of its tokens was the most likely one (for ties, the lowest id).
  std::vector<bool> greedy;
  // Generation only: the new ids, without the end of text, and their text.
  std::vector<int32_t> generated;
  std::string generated_text;
};

struct Answer {
  int64_t choice = 0;     // multiple choice and schema
  std::string text = {};  // generation: the extracted answer, normalized
  // The choice is the right one, each token was the most likely one (language modeling), or `text` begins
  // with the normalized right answer.
  bool correct = false;
  // Sum of -log p, in nats, over the tokens of the right continuation, and their number. 0 for generation.
  double nll = 0;
  int64_t tokens = 0;
};

// Evaluates the scores of one item. Throws NumericalError if a log probability is not finite.
Answer judge(const Task& task, const TaskItem& item, const Scores& scores);

// The index of the continuation with the smallest mean of -log p per token; for ties, the first.
int64_t predict_choice(const std::vector<std::vector<float>>& log_probs);

// Strings that end a generated answer.
inline constexpr std::array<std::string_view, 2> kStopStrings = {"\n\n", "Q:"};

// The text before the first stop string. Generation may end as soon as the result is shorter than the text.
std::string_view cut_at_stop_string(std::string_view text);

// Converts to lower case, removes punctuation and the articles a, an and the, and leaves single spaces
// between words. Invalid UTF-8 counts as U+FFFD.
std::string normalize_answer(std::string_view text);

}  // namespace dtopp::tasks

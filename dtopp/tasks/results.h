// Summarizes answers in tables: accuracies per task and per area of the paper, and their average. Keeps the
// results of finished tasks.
#pragma once

#include <cmath>

#include <nlohmann/json.hpp>

#include "dtopp/base/manifest.h"
#include "dtopp/tasks/task.h"
#include "dtopp/tasks/task_requests.h"

namespace dtopp::tasks {
// The experts that a model used for its answers.
struct ExpertUse {
  int64_t selected = 0;  // token-expert pairs, over all layers
  int64_t routed = 0;    // tokens times routed layers; 0 for a dense model

  double active_experts() const { return static_cast<double>(selected) / static_cast<double>(routed); }
  ExpertUse& operator+=(const ExpertUse& other) {
    selected += other.selected;
    routed += other.routed;
    return *this;
  }
  bool operator==(const ExpertUse&) const = default;
};

// The sums over the answers to one data set.
struct Tally {
  std::string category = {};  // MMLU only, else empty
  int64_t correct = 0;
  int64_t items = 0;
  double nll = 0;  // sum of -log p over the right continuations, in nats
  int64_t tokens = 0;
  ExpertUse experts{};

  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(items); }
};

// The result of one task. Accuracies are fractions of 1.
struct TaskResult {
  Task task;
  double accuracy = 0;
  double standard_error = 0;  // standard error if items were drawn at random: sqrt(a (1 - a) / n)
  int64_t items = 0;
  double nll = 0;  // as in Tally
  int64_t tokens = 0;
  ExpertUse experts{};
  std::vector<Tally> categories = {};  // MMLU only, else empty

  // Language modeling: exp of the mean -log p per continuation, which is one word.
  double perplexity() const { return std::exp(nll / static_cast<double>(items)); }
};

// The answers to the requests of data set `index`, in order. Throws NumericalError if a log probability is
// not finite.
std::vector<Answer> judge_all(const TaskRequests& requests, size_t index, std::span<const Scores> scores);

Tally tally(const DataSet& data, std::span<const Answer> answers);

// The unweighted mean over the data sets (the categories of MMLU). Each one must have at least one item.
TaskResult summarize(const Task& task, std::span<const Tally> data_sets);

// The unweighted mean over tasks, as in the paper's row "Average".
double average(std::span<const TaskResult> results);

struct AreaResult {
  std::string_view area;
  double accuracy = 0;  // the unweighted mean over its tasks
};

// One result per area, in the order of the tasks.
std::vector<AreaResult> summarize_areas(std::span<const TaskResult> results);

// {"tasks": {NAME: {"accuracy", "stderr", "items"}}, "average"}, with these additions:
//
// - models with experts: "active_experts" per task, the mean over layers and over the tokens computed for it;
// - tasks with continuations: "nll" of the right ones, in nats per token;
// - language modeling: "perplexity"; MMLU: "categories", {CATEGORY: {"accuracy", "items"}};
// - if tasks were left out: "average_over", [NAME], and "left_out", {NAME: {"longest", "sequence_length"}}.
nlohmann::ordered_json to_json(std::span<const TaskResult> results, std::span<const LongTask> left_out = {});

// The paper's table: percentages with one decimal; tasks by area, those left out, then areas and the average.
// Models with experts have a column with the experts per token; language modeling shows its perplexity.
std::string format_table(std::span<const TaskResult> results, std::span<const LongTask> left_out = {});

// One line per task that was left out.
std::string format_left_out(std::span<const LongTask> left_out);

// The categories of the tasks that have some, in columns.
std::string format_categories(std::span<const TaskResult> results);

// The table with the paper's own columns beside each task and the average. They belong to the paper's models,
// whatever was evaluated. `this_model` describes the evaluated model ("9.9M parameters …") above the table.
std::string format_table_with_paper(std::span<const TaskResult> results, std::span<const LongTask> left_out,
                                    const std::string& this_model);

// The columns of the paper's table of main results.
inline constexpr std::array<std::string_view, 4> kPaperModels = {"Dense", "Top-k", "Top-p", "DTop-p"};

// The models and the training behind these columns.
inline constexpr char kPaperSetting[] =
    "Dense-1.3B, and MoE-1.3B-6.9B-64E8A routed by top-k, top-p and DTop-p, each after 100 billion tokens";

// Percentages in the order of kPaperModels. `task` is a name as on the command line, or "average"; nullopt
// for any other name.
std::optional<std::array<double, 4>> paper_results(std::string_view task);

// Keeps the finished tasks of an evaluation in a folder beside its output until all are done. An interrupted
// evaluation then resumes with the next task. Each task has two files in the folder:
//
//   copa.json   a record (base/manifest.h): the settings of the evaluation, the sums of the results, and
//               size and checksum of the other file
//   copa.jsonl  the dump lines of its items
//
// It removes only tasks with such a record. All other files stay.

// The folder for the results that will be written to `output`.
fs::path kept_results_of(const fs::path& output);

class KeptResults {
 public:
  // Keeps nothing.
  KeptResults() = default;
  // `key` holds the settings that a stored result must match. The task's checksum and number of items are
  // added to it.
  KeptResults(fs::path folder, nlohmann::ordered_json key)
      : folder_(std::move(folder)), key_(std::move(key)) {}

  bool keeps() const { return !folder_.empty(); }
  const fs::path& folder() const { return folder_; }

  // The sums of a task that was finished with the same key; nullopt otherwise, also if its files are damaged
  // or unreadable.
  std::optional<std::vector<Tally>> find(const TaskRequests& requests) const;

  // Stores a finished task. Each line of `dump` includes its newline. Returns false, and keeps the lines in
  // memory only, if other files have the names. Throws DataError if the folder cannot be written.
  bool keep(const TaskRequests& requests, const std::vector<Tally>& tallies, std::string dump);

  // The dump lines of a task that find() returned or keep() received.
  std::string dump(const Task& task) const;

  // Removes all tasks with a record, and the folder if nothing else is in it.
  void remove() const;

 private:
  bool has_record(const Task& task) const;
  nlohmann::ordered_json key_of(const TaskRequests& requests) const;

  fs::path folder_;
  nlohmann::ordered_json key_;
  std::map<std::string, std::string> dumps_in_memory_;  // by file name
};

}  // namespace dtopp::tasks

// From answers to the tables: accuracies of tasks, of the paper's areas, and their average.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/tasks/answers.h"
#include "dtopp/tasks/task.h"
#include "dtopp/tasks/task_requests.h"

namespace dtopp {

// How many experts answering took.
struct ExpertUse {
  int64_t selected = 0;  // token-expert pairs, over all layers
  int64_t routed = 0;    // tokens, once a layer; 0 of a dense model

  double active_experts() const { return static_cast<double>(selected) / static_cast<double>(routed); }
  ExpertUse& operator+=(const ExpertUse& other) {
    selected += other.selected;
    routed += other.routed;
    return *this;
  }
  bool operator==(const ExpertUse&) const = default;
};

// The answers to one data set.
struct Tally {
  std::string category = {};  // of MMLU, else empty
  int64_t correct = 0;
  int64_t items = 0;
  double nll = 0;  // of the right continuations: the sum of -log p, nats
  int64_t tokens = 0;
  ExpertUse experts{};

  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(items); }
};

// Fractions of 1.
struct TaskResult {
  Task task;
  double accuracy = 0;
  double standard_error = 0;  // of the accuracy, were the items drawn at random: sqrt(a (1 - a) / n)
  int64_t items = 0;
  double nll = 0;  // as in Tally
  int64_t tokens = 0;
  ExpertUse experts{};
  std::vector<Tally> categories = {};  // of MMLU, else empty

  // Language modelling: exp of the mean -log p of a continuation, which is a word.
  double perplexity() const { return std::exp(nll / static_cast<double>(items)); }
};

// The answers to the requests of data set `index`, in their order. NumericalError where a log probability is
// not finite.
std::vector<Answer> judge_all(const TaskRequests& requests, size_t index, std::span<const Scores> scores);

Tally tally(const DataSet& data, std::span<const Answer> answers);

// The unweighted mean over the data sets (categories of MMLU); each must have an item.
TaskResult summarize(const Task& task, std::span<const Tally> data_sets);

// The unweighted mean over tasks, as in the paper's row "Average".
double average(std::span<const TaskResult> results);

struct AreaResult {
  std::string_view area;
  double accuracy = 0;  // the unweighted mean over its tasks
};

// The areas of the tasks, in their order.
std::vector<AreaResult> summarize_areas(std::span<const TaskResult> results);

// {"tasks": {NAME: {"accuracy", "stderr", "items"}}, "average"}. Of a model with experts tasks have
// "active_experts", the mean over layers and the tokens computed for them. Tasks with continuations have
// "nll" too, of the right ones in nats a token, language modelling "perplexity", MMLU "categories",
// {CATEGORY: {"accuracy", "items"}}. Where tasks were left out also "average_over", [NAME], and "left_out",
// {NAME: {"longest", "sequence_length"}}.
nlohmann::ordered_json to_json(std::span<const TaskResult> results, std::span<const LongTask> left_out = {});

// The paper's table: percentages with one decimal, tasks by area, those left out, then areas and the average;
// of a model with experts beside each task how many it used. After the items of language modelling its
// perplexity.
std::string format_table(std::span<const TaskResult> results, std::span<const LongTask> left_out = {});

// A line for each task that was left out.
std::string format_left_out(std::span<const LongTask> left_out);

// The categories of those tasks that have some, in columns.
std::string format_categories(std::span<const TaskResult> results);

// The same with the paper's own columns beside each task and the average. They are of the paper's models,
// whatever was evaluated: `this_model` says what that is ("9.9M parameters …"), above the table.
std::string format_table_with_paper(std::span<const TaskResult> results, std::span<const LongTask> left_out,
                                    const std::string& this_model);

}  // namespace dtopp

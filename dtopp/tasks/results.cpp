#include "dtopp/tasks/results.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/tasks/paper_results.h"

namespace dtopp::tasks {
namespace {

using nlohmann::ordered_json;

constexpr double kPercent = 100;

bool has_perplexity(const TaskResult& result) {
  return result.task.type == TaskType::kLanguageModeling && result.tokens > 0;
}

std::string title_with_shots(const Task& task) {
  return std::string(task.title) + "(" + std::to_string(task.shots) + ")";
}

// If some tasks are left out: the number of tasks in the average.
std::string average_over(std::span<const TaskResult> results, std::span<const LongTask> left_out) {
  if (left_out.empty()) return "";
  return "  over " + std::to_string(results.size()) + " of " +
         std::to_string(results.size() + left_out.size()) + " tasks";
}

}  // namespace

std::vector<Answer> judge_all(const TaskRequests& requests, size_t index, std::span<const Scores> scores) {
  std::vector<Answer> answers;
  for (size_t n = 0; n < scores.size(); ++n) {
    const TaskItem& item = requests.data_sets[index].items[requests.requests[index][n].index];
    answers.push_back(judge(requests.task, item, scores[n]));
  }
  return answers;
}

Tally tally(const DataSet& data, std::span<const Answer> answers) {
  Tally sums{.category = data.category};
  for (const Answer& answer : answers) {
    sums.correct += answer.correct ? 1 : 0;
    sums.items += 1;
    sums.nll += answer.nll;
    sums.tokens += answer.tokens;
  }
  return sums;
}

TaskResult summarize(const Task& task, std::span<const Tally> data_sets) {
  TaskResult result{.task = task};
  const auto count = static_cast<double>(data_sets.size());
  double variance = 0;
  for (const Tally& tally : data_sets) {
    const double accuracy = tally.accuracy();
    result.accuracy += accuracy / count;
    variance += accuracy * (1 - accuracy) / static_cast<double>(tally.items);
    result.items += tally.items;
    result.nll += tally.nll;
    result.tokens += tally.tokens;
    result.experts += tally.experts;
    if (task.by_category) result.categories.push_back(tally);
  }
  result.standard_error = std::sqrt(variance) / count;
  return result;
}

double average(std::span<const TaskResult> results) {
  double sum = 0;
  for (const TaskResult& result : results) sum += result.accuracy;
  return sum / static_cast<double>(results.size());
}

std::vector<AreaResult> summarize_areas(std::span<const TaskResult> results) {
  std::vector<AreaResult> areas;
  // The tasks of one area are consecutive.
  for (size_t begin = 0; begin < results.size();) {
    size_t end = begin + 1;
    while (end < results.size() && results[end].task.area == results[begin].task.area) ++end;
    areas.push_back({results[begin].task.area, average(results.subspan(begin, end - begin))});
    begin = end;
  }
  return areas;
}

ordered_json to_json(std::span<const TaskResult> results, std::span<const LongTask> left_out) {
  ordered_json tasks = ordered_json::object();
  for (const TaskResult& result : results) {
    ordered_json& task = tasks[std::string(result.task.name)] = {
        {"accuracy", result.accuracy}, {"stderr", result.standard_error}, {"items", result.items}};
    if (result.experts.routed > 0) task["active_experts"] = result.experts.active_experts();
    if (result.tokens > 0) task["nll"] = result.nll / static_cast<double>(result.tokens);
    if (has_perplexity(result)) task["perplexity"] = result.perplexity();
    for (const Tally& category : result.categories)
      task["categories"][category.category] = {{"accuracy", category.accuracy()}, {"items", category.items}};
  }
  ordered_json json = {{"tasks", std::move(tasks)}, {"average", average(results)}};
  if (left_out.empty()) return json;
  for (const TaskResult& result : results) json["average_over"].push_back(result.task.name);
  for (const LongTask& task : left_out)
    json["left_out"][std::string(task.task.name)] = {{"longest", task.longest},
                                                     {"sequence_length", task.sequence_length}};
  return json;
}

std::string format_left_out(std::span<const LongTask> left_out) {
  std::string lines;
  for (const LongTask& task : left_out) {
    lines += format("%-20s left out: its longest prompt takes %lld tokens, the model's sequences have %lld\n",
                    title_with_shots(task.task).c_str(), static_cast<long long>(task.longest),
                    static_cast<long long>(task.sequence_length));
  }
  return lines;
}

std::string format_table(std::span<const TaskResult> results, std::span<const LongTask> left_out) {
  std::string table;
  const bool has_experts = !results.empty() && results[0].experts.routed > 0;
  table += format("%-20s %9s %7s %8s %7s%s\n", "benchmark(shots)", "accuracy", "+-", "chance", "items",
                  has_experts ? "  experts" : "");
  for (const TaskResult& result : results) {
    table += format("%-20s %9.1f %7.1f %8.1f %7lld", title_with_shots(result.task).c_str(),
                    kPercent * result.accuracy, kPercent * result.standard_error,
                    kPercent * result.task.chance(), static_cast<long long>(result.items));
    if (has_experts) table += format(" %8.3f", result.experts.active_experts());
    if (has_perplexity(result)) table += format("  perplexity %.4g", result.perplexity());
    table += "\n";
  }
  table += format_left_out(left_out) + "\n";
  for (const AreaResult& area : summarize_areas(results))
    table += format("%-24s %5.1f\n", std::string(area.area).c_str(), kPercent * area.accuracy);
  table += format("%-24s %5.1f%s\n", "Average", kPercent * average(results),
                  average_over(results, left_out).c_str());
  return table;
}

std::string format_categories(std::span<const TaskResult> results) {
  constexpr size_t kColumns = 3;
  std::string table;
  for (const TaskResult& result : results) {
    const size_t count = result.categories.size(), rows = (count + kColumns - 1) / kColumns;
    for (size_t row = 0; row < rows; ++row) {
      for (size_t i = row; i < count; i += rows) {
        const Tally& category = result.categories[i];
        table += format("%-36s %5.1f%s", category.category.c_str(), kPercent * category.accuracy(),
                        i + rows < count ? "  " : "\n");
      }
    }
    if (count > 0) table += "\n";
  }
  return table;
}

std::string format_table_with_paper(std::span<const TaskResult> results, std::span<const LongTask> left_out,
                                    const std::string& this_model) {
  std::string table = "accuracy: this model, " + this_model + "\n" + "paper:    " + kPaperSetting + "\n\n";
  table += format("%-20s %9s %7s |", "benchmark(shots)", "accuracy", "+-");
  for (const std::string_view model : kPaperModels) table += format(" %6s", std::string(model).c_str());
  table += "   (paper)\n";
  const auto add_paper = [&](std::string_view row) {
    for (const double percent : paper_results(row)) table += format(" %6.1f", percent);
    table += "\n";
  };
  for (const TaskResult& result : results) {
    table += format("%-20s %9.1f %7.1f |", title_with_shots(result.task).c_str(), kPercent * result.accuracy,
                    kPercent * result.standard_error);
    add_paper(result.task.name);
  }
  table += format_left_out(left_out);
  table += format("%-20s %9.1f %7s |", "Average", kPercent * average(results), "");
  if (results.size() == all_tasks().size()) {
    add_paper("average");
  } else {
    table += average_over(results, left_out) + " (the paper's is over all 13)\n";
  }
  return table;
}

}  // namespace dtopp::tasks

#include "dtopp/tasks/results.h"

#include <system_error>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"

namespace dtopp::tasks {
namespace {

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

// The paper's table "Inference performance comparison between Dense-1.3B and MoE-1.3B-6.9B-64E8A".
constexpr std::pair<std::string_view, std::array<double, 4>> kRows[] = {
    {"svamp", {5.3, 10.3, 8.3, 16.0}},
    {"mmlu", {25.2, 26.6, 26.8, 27.4}},
    {"arc_easy", {60.9, 65.7, 65.5, 67.1}},
    {"arc_challenge", {34.4, 40.6, 40.9, 41.7}},
    {"copa", {69.0, 82.0, 82.0, 85.0}},
    {"piqa", {75.7, 78.9, 77.7, 78.1}},
    {"hellaswag", {62.7, 69.1, 69.2, 70.9}},
    {"winogrande", {62.7, 64.0, 66.3, 67.2}},
    {"lambada_openai", {56.7, 61.5, 63.5, 62.5}},
    {"boolq", {55.4, 63.9, 63.9, 65.4}},
    {"agi_eval_lsat_rc", {26.2, 22.7, 23.8, 27.2}},
    {"agi_eval_lsat_lr", {26.0, 26.4, 24.9, 25.5}},
    {"agi_eval_sat_en", {26.5, 24.8, 27.7, 27.7}},
    {"average", {45.1, 49.0, 49.3, 50.9}}};

using nlohmann::json;

constexpr char kFormat[] = "dtopp task result 3";

std::string record_name(const Task& task) { return std::string(task.name) + ".json"; }
std::string dump_name(const Task& task) { return std::string(task.name) + ".jsonl"; }

// Throws json::exception, or DataError if a number is impossible.
Tally read_tally(const json& sums, const DataSet& data, size_t items) {
  const auto count = [&](size_t index) { return integer_of(sums.at(index)); };
  Tally tally{data.category, count(0), count(1), sums.at(2), count(3), {count(4), count(5)}};
  const ExpertUse& experts = tally.experts;
  const bool is_possible = std::min({tally.correct, tally.tokens, experts.selected, experts.routed}) >= 0 &&
                           tally.correct <= tally.items && std::isfinite(tally.nll);
  if (!is_possible || !std::cmp_equal(tally.items, items) || sums.size() != 6)
    throw DataError("impossible results of a task");
  return tally;
}

ordered_json to_json(const std::vector<Tally>& tallies) {
  ordered_json sums = ordered_json::array();
  for (const Tally& tally : tallies)
    sums.push_back(
        {tally.correct, tally.items, tally.nll, tally.tokens, tally.experts.selected, tally.experts.routed});
  return sums;
}

void remove_file(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) throw file_error("remove", path, error.value());
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
    lines += format("%-20s left out: its longest prompt takes %ld tokens, the model's sequences have %ld\n",
                    title_with_shots(task.task).c_str(), task.longest, task.sequence_length);
  }
  return lines;
}

std::string format_table(std::span<const TaskResult> results, std::span<const LongTask> left_out) {
  std::string table;
  const bool has_experts = !results.empty() && results[0].experts.routed > 0;
  table += format("%-20s %9s %7s %8s %7s%s\n", "benchmark(shots)", "accuracy", "+-", "chance", "items",
                  has_experts ? "  experts" : "");
  for (const TaskResult& result : results) {
    table += format("%-20s %9.1f %7.1f %8.1f %7ld", title_with_shots(result.task).c_str(),
                    kPercent * result.accuracy, kPercent * result.standard_error,
                    kPercent * result.task.chance(), result.items);
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
    for (const auto paper = paper_results(row).value(); const double percent : paper)
      table += format(" %6.1f", percent);
    table += "\n";
  };
  for (const TaskResult& result : results) {
    table += format("%-20s %9.1f %7.1f |", title_with_shots(result.task).c_str(), kPercent * result.accuracy,
                    kPercent * result.standard_error);
    add_paper(result.task.name);
  }
  table += format_left_out(left_out);
  table += format("%-20s %9.1f %7s |", "Average", kPercent * average(results), "");
  if (results.size() == all_tasks().size())
    add_paper("average");
  else
    table += average_over(results, left_out) + " (the paper's is over all 13)\n";
  return table;
}

std::optional<std::array<double, 4>> paper_results(std::string_view task) {
  const auto* const row = std::ranges::find(kRows, task, [](const auto& each) { return each.first; });
  return row == std::end(kRows) ? std::nullopt : std::optional(row->second);
}

fs::path kept_results_of(const fs::path& output) {
  return output.empty() ? fs::path() : fs::path(output.string() + ".parts");
}

ordered_json KeptResults::key_of(const TaskRequests& requests) const {
  ordered_json key = key_;
  key["items_sha256"] = digest_items(requests.data_sets);
  ordered_json counts = ordered_json::array();
  for (const auto& data_set : requests.requests) counts.push_back(data_set.size());
  key["items"] = std::move(counts);
  return key;
}

// False if the file is not a record of dtopp's.
bool KeptResults::has_record(const Task& task) const {
  try {
    read_manifest(folder_, kFormat, record_name(task));
    return true;
  } catch (const DataError&) {
    return false;
  }
}

std::optional<std::vector<Tally>> KeptResults::find(const TaskRequests& requests) const {
  if (!keeps()) return std::nullopt;
  try {
    const Manifest record = read_manifest(folder_, kFormat, record_name(requests.task));
    const json facts = parse_json(record.about, kFormat);
    if (facts.at("key") != parse_json(dump_json(key_of(requests)), kFormat)) return std::nullopt;
    const auto dump = record.files.find(dump_name(requests.task));
    if (dump == record.files.end()) return std::nullopt;
    verify_content(folder_, {*dump});
    const json& sums = facts.at("tallies");
    if (sums.size() != requests.data_sets.size()) return std::nullopt;
    std::vector<Tally> tallies;
    for (size_t i = 0; i < sums.size(); ++i)
      tallies.push_back(read_tally(sums.at(i), requests.data_sets[i], requests.requests[i].size()));
    return tallies;
  } catch (const DataError&) {
  } catch (const json::exception&) {
  }
  return std::nullopt;
}

bool KeptResults::keep(const TaskRequests& requests, const std::vector<Tally>& tallies, std::string dump) {
  if (!keeps()) return true;
  const std::string name = dump_name(requests.task);
  const auto exists = [&](const std::string& file) {
    return path_kind(folder_ / file) != PathKind::kNothing;
  };
  if ((exists(name) || exists(record_name(requests.task))) && !has_record(requests.task)) {
    dumps_in_memory_[name] = std::move(dump);
    return false;
  }
  const ordered_json facts = {{"key", key_of(requests)}, {"tallies", to_json(tallies)}};
  Manifest record{kFormat, dump_json(facts), {}};
  record.files[name] = {dump.size(), hash_bytes(std::as_bytes(std::span(dump)))};
  make_directories(folder_);
  // With this order, a record names every file of dtopp's, whenever the process is interrupted.
  remove_file(folder_ / name);
  write_file_atomically(folder_ / record_name(requests.task), format_manifest(record));
  write_file_atomically(folder_ / name, dump);
  return true;
}

std::string KeptResults::dump(const Task& task) const {
  const auto in_memory = dumps_in_memory_.find(dump_name(task));
  return in_memory == dumps_in_memory_.end() ? read_file(folder_ / dump_name(task)) : in_memory->second;
}

void KeptResults::remove() const {
  if (!keeps()) return;
  for (const Task& task : all_tasks()) {
    if (!has_record(task)) continue;
    remove_file(folder_ / dump_name(task));
    remove_file(folder_ / record_name(task));
  }
  std::error_code not_empty;  // the folder holds other files; it stays
  fs::remove(folder_, not_empty);
}

}  // namespace dtopp::tasks


#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"
#include "dtopp/convert/convert.h"
#include "dtopp/convert/fill_folder.h"
#include "dtopp/convert/python_code.h"
#include "dtopp/tasks/prompts.h"
#include "dtopp/tasks/task.h"

namespace dtopp::convert {
namespace {

// lm-eval has tasks with most of these names, but with other prompts and scores. The prefix avoids a clash.
constexpr char kPrefix[] = "dtopp_";
constexpr char kGroup[] = "dtopp";
constexpr char kDataFolder[] = "data";
// Separates the examples from the item. lm-eval passes both as one string, but they must be tokenized
// separately (python/dtopp/lm_eval.py). No item contains this character.
constexpr char kSeparator = '\x1e';

ordered_json document(const tasks::Task& task, const tasks::TaskItem& item, const tasks::PromptText& text) {
  std::vector<std::string> contexts;
  for (const std::string& context : text.contexts) contexts.push_back(text.preamble + kSeparator + context);
  switch (task.type) {
    case tasks::TaskType::kMultipleChoice:
      return {{"context", contexts[0]}, {"continuations", text.continuations}, {"gold", item.gold}};
    case tasks::TaskType::kSchema:
      return {{"contexts", contexts}, {"continuation", text.continuations[0]}, {"gold", item.gold}};
    case tasks::TaskType::kLanguageModeling:
      return {{"context", contexts[0]}, {"continuation", text.continuations[0]}};
    case tasks::TaskType::kGeneration:
      break;
  }
  return {{"context", contexts[0]}, {"answer", item.answer}, {"worked_answer", item.raw_worked_answer}};
}

void write_documents(const tasks::Task& task, const tasks::DataSet& data, const fs::path& path) {
  const auto count = std::ssize(data.items);
  const auto exemplars = tasks::draw_exemplars(count, task.shots, count);
  write_file_atomically(path, [&](OutputFile& file) {
    for (int64_t i = 0; i < count; ++i) {
      const auto item = static_cast<size_t>(i);
      const tasks::PromptText text = tasks::make_prompt_text(task, data.items, i, exemplars[item]);
      file.write(dump_json(document(task, data.items[item], text)) + "\n");
    }
  });
}

// The members of a document that lm-eval combines into requests, and the function that judges the answers.
std::string requests_yaml(const tasks::Task& task, const std::string& data_file) {
  constexpr char kChoices[] =
      "output_type: multiple_choice\n"
      "target_delimiter: \"\"\n"
      "process_results: !function dtopp_tasks.likeliest\n";
  switch (task.type) {
    case tasks::TaskType::kMultipleChoice:
      return std::string(kChoices) +
             "doc_to_text: context\n"
             "doc_to_choice: continuations\n"
             "doc_to_target: gold\n";
    case tasks::TaskType::kSchema:
      return std::string(kChoices) +
             "doc_to_text: gold\n"
             "doc_to_choice: contexts\n"
             "doc_to_target: continuation\n";
    case tasks::TaskType::kLanguageModeling:
      return "output_type: loglikelihood\n"
             "process_results: !function dtopp_tasks.greedy\n"
             "doc_to_text: context\n"
             "doc_to_target: continuation\n";
    case tasks::TaskType::kGeneration:
      break;
  }
  std::string yaml =
      "output_type: generate_until\n"
      "process_results: !function dtopp_tasks.begins_with_answer\n"
      "doc_to_text: context\n"
      "doc_to_target: answer\n";
  std::string stops;
  for (const std::string_view stop : tasks::kStopStrings)
    stops += (stops.empty() ? "" : ", ") + quote_json(stop);
  yaml += "generation_kwargs: {do_sample: false, until: [" + stops + "], budget_from: " + data_file + "}\n";
  return yaml;
}

std::string task_yaml(const tasks::Task& task, const std::string& name, const fs::path& data_path) {
  const std::string data_file = quote_json(data_path.string());
  std::string yaml = "task: " + name + "\n";
  yaml += "dataset_path: json\n";
  yaml += "dataset_kwargs: {data_files: {test: " + data_file + "}}\n";
  yaml += "test_split: test\n";
  yaml += "num_fewshot: 0\n";
  yaml += requests_yaml(task, data_file);
  yaml += "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\n";
  yaml += "metadata: {version: 1}\n";
  return yaml;
}

std::string group_yaml(const std::string& name, const std::vector<std::string>& members) {
  std::string yaml = "group: " + name + "\ntask:\n";
  for (const std::string& member : members) yaml += "  - " + member + "\n";
  return yaml;
}

// Writes the task's files into `into`, which will be renamed to `folder`.
void write_task(const tasks::Task& task, const fs::path& data, const fs::path& into, const fs::path& folder) {
  const std::string name = kPrefix + std::string(task.name);
  std::vector<std::string> categories;
  for (const tasks::DataSet& set : tasks::load_task(task, data)) {
    const std::string set_name = task.by_category ? name + "_" + set.category : name;
    const fs::path data_file = fs::path(kDataFolder) / (set_name + ".jsonl");
    write_documents(task, set, into / data_file);
    write_file_atomically(into / (set_name + ".yaml"), task_yaml(task, set_name, folder / data_file));
    categories.push_back(set_name);
  }
  if (task.by_category)
    write_file_atomically(into / (name + ".yaml"),
                          group_yaml(name, categories) +
                              "aggregate_metric_list: [{metric: acc, weight_by_size: false}]\n"
                              "metadata: {version: 1}\n");
}

}  // namespace

void convert_to_lm_eval(const fs::path& data, const fs::path& folder) {
  fill_folder(folder, [&](const fs::path& into) {
    make_directories(into / kDataFolder);
    std::vector<std::string> names;
    for (const tasks::Task& task : tasks::all_tasks()) {
      write_task(task, data, into, fs::absolute(folder));
      names.push_back(kPrefix + std::string(task.name));
    }
    write_file_atomically(into / (std::string(kGroup) + ".yaml"), group_yaml(kGroup, names));
    write_file_atomically(into / "dtopp_tasks.py", kLmEvalTasks);
  });
}

}  // namespace dtopp::convert

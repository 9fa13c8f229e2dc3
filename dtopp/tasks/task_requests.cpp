#include "dtopp/tasks/task_requests.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"

namespace dtopp::tasks {
TaskRequests prepare_requests(const Task& task, const fs::path& directory, const data::Tokenizer& tokenizer,
                              int64_t limit) {
  TaskRequests prepared{.task = task, .data_sets = load_task(task, directory), .requests = {}};
  for (const DataSet& data : prepared.data_sets) {
    try {
      prepared.requests.push_back(make_requests(task, data, tokenizer, limit));
    } catch (const DataError& error) {
      throw DataError((directory / task.name).string(), ": ", error.what());
    }
  }
  return prepared;
}

PromptCounts count_prompts(const TaskRequests& requests) {
  PromptCounts counts;
  for (const auto& data_set : requests.requests) {
    for (const Request& request : data_set) {
      ++counts.items;
      counts.longest = std::max(counts.longest, request.longest());
      for (size_t choice = 0; choice < request.num_sequences(); ++choice) {
        ++counts.sequences;
        counts.cut_sequences += request.cut(choice) > 0 ? 1 : 0;
        counts.tokens += static_cast<int64_t>(request.context(choice).size());
        if (!request.continuations.empty())
          counts.tokens += static_cast<int64_t>(request.continuations[choice].size());
      }
    }
  }
  return counts;
}

std::vector<LongTask> take_out_long_tasks(std::vector<TaskRequests>& tasks, std::string_view names,
                                          int64_t sequence_length) {
  std::vector<LongTask> left_out;
  for (const TaskRequests& requests : tasks) {
    const int64_t longest = count_prompts(requests).longest;
    if (longest > sequence_length) left_out.push_back({requests.task, longest, sequence_length});
  }
  for (const LongTask& task : left_out) {
    if (left_out.size() < tasks.size() && !names_task(names, task.task)) continue;
    throw UsageError(task.task.name, ": its longest prompt takes ", task.longest,
                     " tokens, model.sequence_length is ", sequence_length,
                     "; leave the task out, or train with longer sequences");
  }
  std::erase_if(tasks, [&](const TaskRequests& requests) {
    return std::ranges::any_of(left_out,
                               [&](const LongTask& task) { return task.task.name == requests.task.name; });
  });
  return left_out;
}

std::string dump_line(const Task& task, const DataSet& data, const Request& request, const Scores* scores,
                      const Answer* answer) {
  ordered_json line = {{"task", task.name}, {"category", nullptr}, {"index", request.index}};
  if (task.by_category) line["category"] = data.category;
  line["contexts"] = request.contexts;
  line["continuations"] = request.continuations;
  if (scores != nullptr && answer != nullptr) {
    line["log_probs"] = scores->log_probs;
    line["greedy"] = scores->greedy;
    if (task.type == TaskType::kGeneration) {
      line["generated"] = scores->generated;
      line["prediction"] = answer->text;
    } else {
      line["prediction"] = answer->choice;
    }
    line["correct"] = answer->correct;
  }
  return dump_json(line);
}

void write_prompts(OutputFile& file, std::span<const TaskRequests> tasks) {
  for (const TaskRequests& requests : tasks) {
    for (size_t i = 0; i < requests.data_sets.size(); ++i)
      for (const Request& request : requests.requests[i])
        file.write(dump_line(requests.task, requests.data_sets[i], request, nullptr, nullptr) + "\n");
  }
}

}  // namespace dtopp::tasks

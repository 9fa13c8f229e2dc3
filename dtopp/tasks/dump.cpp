#include "dtopp/tasks/dump.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"

namespace dtopp::tasks {

std::string dump_line(const Task& task, const DataSet& data, const Request& request, const Scores* scores,
                      const Answer* answer) {
  nlohmann::ordered_json line = {{"task", task.name}, {"category", nullptr}, {"index", request.index}};
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
    for (size_t i = 0; i < requests.data_sets.size(); ++i) {
      for (const Request& request : requests.requests[i])
        file.write(dump_line(requests.task, requests.data_sets[i], request, nullptr, nullptr) + "\n");
    }
  }
}

}  // namespace dtopp::tasks

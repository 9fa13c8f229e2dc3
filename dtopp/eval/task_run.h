// Runs a model on prepared tasks, one after another; finished ones are kept, so that an interrupted
// evaluation goes on with the next.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/inference/inference_model.h"
#include "dtopp/tasks/kept_results.h"
#include "dtopp/tasks/results.h"
#include "dtopp/tasks/task_requests.h"

namespace dtopp {

struct TaskRunHooks {
  std::function<void(const std::string& task, size_t done, size_t total)> progress;  // items
  std::function<void(const std::string& text)> message;
  std::function<bool()> stop;
};

// The results in the order of `tasks`, about `batch_tokens` tokens computed at once, shared out among ranks.
// Those that `kept` finds on rank 0 are not computed again; on the other ranks `kept` keeps nothing, and what
// it found is missing in their results. Stopped once `stop` says so on any rank. NumericalError where a log
// probability is not finite.
std::vector<TaskResult> run_tasks(const InferenceModel& model, const Tokenizer& tokenizer,
                                  std::span<const TaskRequests> tasks, KeptResults& kept,
                                  int64_t batch_tokens, Collectives& ranks, const TaskRunHooks& hooks);

// All that a score depends on besides the task: the checkpoint, p, the tokenizer, the device and the program.
// What KeptResults compares. `version` is the program's.
nlohmann::ordered_json run_key(const Checkpoint& checkpoint, const InferenceModel& model,
                               const Tokenizer& tokenizer, const std::string& version);

// Results at one number of active experts.
struct BudgetResult {
  double target_experts = 0;
  std::vector<TaskResult> results;
};

// {"sweep": [to_json(results) with "target_experts"]}
nlohmann::ordered_json to_json(std::span<const BudgetResult> sweep, std::span<const LongTask> left_out);

// The average against the number of active experts, after a line for each task that was left out.
std::string format_table(std::span<const BudgetResult> sweep, std::span<const LongTask> left_out);

}  // namespace dtopp

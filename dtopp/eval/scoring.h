// Scores the requests of a task with a model: log probabilities of continuations, or generated answers.
#pragma once

#include <nlohmann/json.hpp>

#include "dtopp/data/text/tokenizer.h"
#include "dtopp/distributed/collectives.h"
#include "dtopp/inference/inference_model.h"
#include "dtopp/inference/shared_batches.h"
#include "dtopp/tasks/results.h"
#include "dtopp/tasks/task.h"
#include "dtopp/tasks/task_requests.h"

namespace dtopp::eval {
// The scores of each request of a data set, in order, and the experts that all requests used.
struct ScoredRequests {
  std::vector<tasks::Scores> scores;
  tasks::ExpertUse experts;
};

// Scores all requests of `task`.
//
// A batch holds consecutive requests of one data set with at most `batch_tokens` tokens in total. A longer
// request forms a batch of its own. Batches are distributed over the ranks. The progress of the watch counts
// requests.
//
// Returns:    all scores on every rank, one entry per data set; nullopt if a stop is requested on any rank
// Collective: every rank of `ranks`, in the same order
std::optional<std::vector<ScoredRequests>> score_task(const inference::InferenceModel& model,
                                                      const data::Tokenizer& tokenizer,
                                                      const tasks::TaskRequests& task, int64_t batch_tokens,
                                                      distributed::Collectives& ranks,
                                                      inference::Watch& watch);

// Evaluates `tasks`, one after another, in batches of about `batch_tokens` tokens, which are distributed over
// the ranks. Finished tasks are stored, so that an interrupted evaluation resumes with the next one.
//
// A task that `kept` finds on rank 0 is not computed again. On the other ranks `kept` stores nothing, so
// their results lack the tasks that rank 0 found.
//
// Returns:    the results in the order of `tasks`
// Throws:     Stopped if a stop is requested on any rank; NumericalError if a log probability is not finite
// Collective: every rank of `ranks`, in the same order
std::vector<tasks::TaskResult> run_tasks(const inference::InferenceModel& model,
                                         const data::Tokenizer& tokenizer,
                                         std::span<const tasks::TaskRequests> tasks, tasks::KeptResults& kept,
                                         int64_t batch_tokens, distributed::Collectives& ranks,
                                         inference::Watch& watch);

// Returns everything that a score depends on besides the task: checkpoint, thresholds p, tokenizer, device
// and program `version`. KeptResults compares it.
nlohmann::ordered_json run_key(const checkpoint::Checkpoint& checkpoint,
                               const inference::InferenceModel& model, const data::Tokenizer& tokenizer,
                               const std::string& version);

// The results at one number of active experts.
struct BudgetResult {
  double target_experts = 0;
  std::vector<tasks::TaskResult> results;
};

// Returns {"sweep": [to_json(results) with "target_experts", …]}.
nlohmann::ordered_json to_json(std::span<const BudgetResult> sweep,
                               std::span<const tasks::LongTask> left_out);

// Returns a table of the average accuracy by number of active experts, after one line per task that was left
// out.
std::string format_table(std::span<const BudgetResult> sweep, std::span<const tasks::LongTask> left_out);

}  // namespace dtopp::eval

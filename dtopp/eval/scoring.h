// Scores the requests of a task with a model: log probabilities of continuations, or generated answers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dtopp/data/text/tokenizer.h"
#include "dtopp/inference/inference_model.h"
#include "dtopp/inference/shared_batches.h"
#include "dtopp/tasks/task.h"
#include "dtopp/tasks/results.h"
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

}  // namespace dtopp::eval

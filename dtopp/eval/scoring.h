// What a model says to the requests of a task: log probabilities of continuations, or generated answers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dtopp/data/tokenizer/tokenizer.h"
#include "dtopp/inference/inference_model.h"
#include "dtopp/inference/shared_batches.h"
#include "dtopp/tasks/answers.h"
#include "dtopp/tasks/results.h"
#include "dtopp/tasks/task_requests.h"

namespace dtopp {

// Of a data set: the scores of each request, in their order, and the experts that it took.
struct ScoredRequests {
  std::vector<Scores> scores;
  ExpertUse experts;
};

// By data set; nullopt where a stop was asked for. Requests of a data
// set are computed together as long as they have at most `batch_tokens` tokens; a longer one is computed by
// itself. These batches are what the ranks share out; every one of them gets all scores. `hooks` counts
// requests.
std::optional<std::vector<ScoredRequests>> score_task(const InferenceModel& model, const Tokenizer& tokenizer,
                                                      const TaskRequests& task, int64_t batch_tokens,
                                                      Collectives& ranks, const BatchHooks& hooks);

}  // namespace dtopp

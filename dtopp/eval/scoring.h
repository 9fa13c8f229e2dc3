// What a model says to the requests of a task: log probabilities of continuations, or generated answers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dtopp/data/tokenizer.h"
#include "dtopp/eval/inference_model.h"
#include "dtopp/tasks/answers.h"
#include "dtopp/tasks/prompts.h"

namespace dtopp {

// Scores of each request, in their order. Requests are computed together as long as they have at most
// `batch_tokens` tokens; a longer one is computed by itself. `progress` is called with the number of requests
// done. `stop` is asked between batches: once it returns true, the scores of the rest are missing.
std::vector<Scores> score_requests(const InferenceModel& model, const Tokenizer& tokenizer,
                                   std::span<const Request> requests, int64_t batch_tokens,
                                   const std::function<void(size_t)>& progress,
                                   const std::function<bool()>& stop);

}  // namespace dtopp

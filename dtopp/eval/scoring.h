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

// Scores of each request, in their order. About `batch_tokens` tokens are computed at once, a request's own
// at least. `progress` hears how many requests are done; `stop` is asked between batches, and once it is true
// the result is shorter.
std::vector<Scores> score_requests(const InferenceModel& model, const Tokenizer& tokenizer,
                                   std::span<const Request> requests, int64_t batch_tokens,
                                   const std::function<void(size_t)>& progress,
                                   const std::function<bool()>& stop);

}  // namespace dtopp

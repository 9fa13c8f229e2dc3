// Reads and checks the body of POST /v1/completions.
#pragma once

#include <set>

#include "dtopp/data/text/tokenizer.h"
#include "dtopp/http/server.h"
#include "dtopp/inference/sequence_input.h"

namespace dtopp::serve {

// A request that is refused with this status.
struct ApiError : std::runtime_error {
  ApiError(int status, const std::string& message, std::string field = "")
      : std::runtime_error(message), status(status), field(std::move(field)) {}
  int status;
  std::string field;  // the member of the request that is wrong; empty: none
};

// {"error": {"message", "type", "param", "code"}}
http::Answer error_answer(const ApiError& error);

// The limits and abilities of the served model.
struct ServedModel {
  std::string name;
  int64_t sequence_length = 0, vocab_size = 0;
  int32_t end_of_text = 0;
  int64_t num_experts = 0;                          // 0: a dense model
  int64_t smallest_budget = 0, largest_budget = 0;  // 0: it cannot change its experts
  size_t most_choices = 0;                          // per request
  std::set<int64_t> budgets;  // numbers of experts that are solved or can be; empty: none
};

struct CompletionRequest {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> prompt_texts;
  int64_t max_tokens = 16;
  int64_t n = 1;
  inference::SamplingOptions sampling{.temperature = 1};
  std::optional<int64_t> log_probs;
  std::optional<int64_t> target_experts;
  std::vector<std::string> stop;
  bool echo = false, stream = false, include_usage = false;
};

// Throws ApiError: 400 for a wrong request, 404 for another model.
CompletionRequest read_completion_request(std::string_view body, const ServedModel& model,
                                          const data::Tokenizer& tokenizer);

// The sequences of a request: n per prompt, choice after choice. A prompt's index and the seed select the
// same random numbers as in `dtopp generate --prompts`.
std::vector<inference::SequenceInput> sequences_of(const CompletionRequest& request);

}  // namespace dtopp::serve

// The body of POST /v1/completions, after a byte that selects a model. An accepted request keeps the model's
// limits; a refusal is an answer that explains itself.
#include "dtopp/serve/completion_request.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"
#include "dtopp/data/text/unicode.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

// Byte-level, one token per byte, and a special one.
static data::Tokenizer make_tokenizer() {
  nlohmann::json vocab;
  for (char32_t c = 0x21; c < 0x144; ++c) {  // the byte-level alphabet
    if ((c >= 0x7f && c < 0xa1) || c == 0xad) continue;
    std::string token;
    data::append_utf8(token, c);
    vocab[token] = vocab.size();
  }
  const nlohmann::json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const nlohmann::json end = {{"id", 256},       {"content", "<end>"}, {"single_word", false},
                              {"lstrip", false}, {"rstrip", false},    {"normalized", false},
                              {"special", true}};
  const nlohmann::json file = {{"pre_tokenizer", byte_level},
                               {"decoder", byte_level},
                               {"added_tokens", nlohmann::json::array({end})},
                               {"model", {{"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
  return data::Tokenizer::load(fuzz::write_scratch("tokenizer.json", dump_json(file)));
}

static void require_limits(const serve::CompletionRequest& request, const serve::ServedModel& model) {
  const inference::SamplingOptions& sampling = request.sampling;
  fuzz::require(sampling.temperature >= 0 && sampling.temperature <= 2, "temperature is in its range");
  fuzz::require(sampling.top_p >= 0 && sampling.top_p <= 1, "top_p is in its range");
  fuzz::require(request.log_probs.value_or(0) >= 0 && request.log_probs.value_or(0) <= 5, "logprobs too");
  fuzz::require(request.stop.size() <= 4, "there are at most four stops");
  for (const std::string& stop : request.stop)
    fuzz::require(!stop.empty() && stop.size() <= 1024, "a stop has 1 to 1024 bytes");
  fuzz::require(request.prompt_texts.size() == request.prompts.size(), "each prompt has a text");
  for (const std::string& text : request.prompt_texts)
    fuzz::require(!data::find_invalid_utf8(text), "a prompt's text is UTF-8");
  const auto sequences = serve::sequences_of(request);
  fuzz::require(!sequences.empty() && sequences.size() <= model.most_choices, "choices are limited");
  fuzz::require(sequences.size() == request.prompts.size() * static_cast<size_t>(request.n), "n per prompt");
  fuzz::require(!request.target_experts || model.budgets.contains(*request.target_experts),
                "a budget is known");
  for (const inference::SequenceInput& sequence : sequences) {
    fuzz::require(!sequence.ids.empty() && sequence.max_tokens >= 1, "a sequence computes a token");
    fuzz::require(static_cast<int64_t>(sequence.ids.size()) + request.max_tokens <= model.sequence_length,
                  "a sequence fits the model");
    for (const int32_t id : sequence.ids)
      fuzz::require(id >= 0 && id < model.vocab_size, "ids lie in the vocabulary");
  }
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const data::Tokenizer tokenizer = make_tokenizer();
  fuzz::Input input(data, size);
  serve::ServedModel model;
  model.name = "tiny";
  model.sequence_length = 64;
  model.vocab_size = tokenizer.vocab_size();
  model.most_choices = 8;
  const size_t kind = input.choice(3);
  model.num_experts = kind == 0 ? 0 : 3;  // dense, without solved thresholds, with them
  model.smallest_budget = 1;
  model.largest_budget = model.num_experts;
  if (kind == 2) model.budgets = {1, 2, 3};
  try {
    require_limits(serve::read_completion_request(input.rest(), model, tokenizer), model);
  } catch (const serve::ApiError& error) {
    fuzz::require(error.status == 400 || error.status == 404, "the request is to blame");
    fuzz::require(*error.what() != '\0', "an error has a message");
    fuzz::require(parse_json(serve::error_answer(error).body, "answer").contains("error"), "it is JSON");
  }
  return 0;
}

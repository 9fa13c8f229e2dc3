#include "dtopp/serve/completion_request.h"

#include <random>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/config/config.h"

namespace dtopp::serve {
namespace {

const char* type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

using nlohmann::json;

constexpr int64_t kMostLogProbs = 5, kMostStops = 4;
constexpr size_t kLongestStop = 1024;  // bytes

const std::vector<std::string> kKnownFields = {"model",
                                               "prompt",
                                               "max_tokens",
                                               "temperature",
                                               "top_p",
                                               "n",
                                               "stream",
                                               "logprobs",
                                               "echo",
                                               "stop",
                                               "seed",
                                               "target_experts",
                                               "user",
                                               "best_of",
                                               "presence_penalty",
                                               "frequency_penalty",
                                               "logit_bias",
                                               "suffix",
                                               "stream_options"};

// Refuses a value other than those that change nothing.
void require_absent(const JsonFields& fields, const std::string& name, const std::vector<json>& harmless) {
  const auto value = fields.find(name);
  if (value && std::ranges::find(harmless, **value) == harmless.end()) fields.fail(name, "is not supported");
}

std::vector<int32_t> ids_of(const JsonFields& fields, const json& list, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocab_size)
      fields.fail("prompt", format("token ids must be whole numbers below %ld", vocab_size));
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::vector<std::vector<int32_t>> prompts_of(const JsonFields& fields, const ServedModel& model,
                                             const data::Tokenizer& tokenizer) {
  const auto encode = [&](const json& text) {
    if (!text.is_string())
      fields.fail("prompt", "must be a text, a list of texts, or one or several lists of token ids");
    return tokenizer.encode(text.get_ref<const std::string&>());
  };
  const auto found = fields.find("prompt");
  if (!found) fields.fail("prompt", "is missing");
  const json& value = **found;
  if (!value.is_array()) return {encode(value)};
  if (value.empty()) fields.fail("prompt", "is empty");
  if (value.front().is_number()) return {ids_of(fields, value, model.vocab_size)};
  if (value.size() > model.most_choices)
    fields.fail("prompt", format("holds more than %zu prompts", model.most_choices));
  std::vector<std::vector<int32_t>> prompts;
  for (const json& prompt : value)
    prompts.push_back(prompt.is_array() ? ids_of(fields, prompt, model.vocab_size) : encode(prompt));
  return prompts;
}

std::vector<std::string> stops_of(const JsonFields& fields) {
  const auto value = fields.find("stop");
  if (!value) return {};
  auto stops = (*value)->is_array() ? fields.texts("stop") : std::vector{fields.text("stop")};
  for (const std::string& stop : stops)
    if (stop.empty() || stop.size() > kLongestStop)
      fields.fail("stop", format("must be one to four texts of 1 to %zu bytes", kLongestStop));
  if (stops.size() > kMostStops) fields.fail("stop", "holds more than four texts");
  return stops;
}

// Returns the requested budget. Explains why a model has none.
std::optional<int64_t> target_of(const JsonFields& fields, const ServedModel& model) {
  if (!fields.has("target_experts")) return std::nullopt;
  if (model.largest_budget == 0)
    fields.fail("target_experts", "this model has no routing threshold, so its number of experts is fixed");
  if (model.budgets.empty())
    fields.fail("target_experts",
                "no text to solve thresholds on; start dtopp serve with --calibration TEXT");
  const int64_t target = fields.integer("target_experts", model.smallest_budget, model.largest_budget);
  if (!model.budgets.contains(target))
    fields.fail(
        "target_experts",
        format("the threshold of %ld experts is not kept, and the text of the others is missing; start "
               "dtopp serve with --calibration TEXT",
               target));
  return target;
}

void check_lengths(const JsonFields& fields, const CompletionRequest& request, const ServedModel& model) {
  if (request.prompts.size() * static_cast<size_t>(request.n) > model.most_choices)
    fields.fail("n", format("prompts times n exceed %zu", model.most_choices));
  for (const std::vector<int32_t>& prompt : request.prompts) {
    if (prompt.empty()) fields.fail("prompt", "holds no token");
    const auto tokens = std::ssize(prompt) + request.max_tokens;
    if (tokens > model.sequence_length)
      fields.fail("max_tokens",
                  format("the prompt's %zu tokens and max_tokens %ld exceed the model's sequence length "
                         "of %ld",
                         prompt.size(), request.max_tokens, model.sequence_length));
  }
}

CompletionRequest read(const JsonFields& fields, const ServedModel& model, const data::Tokenizer& tokenizer) {
  for (const std::string& name : fields.keys()) {
    if (std::ranges::find(kKnownFields, name) == kKnownFields.end())
      throw ApiError(400,
                     "unknown field " + config::quote_for_message(name) + "; " +
                         config::suggest(name, kKnownFields, "known:", kKnownFields),
                     name);
  }
  if (const auto name = fields.find("model"); name && **name != model.name)
    throw ApiError(
        404, "model: the model " + dump_json(**name) + " is not served here; " + model.name + " is", "model");
  CompletionRequest request;
  if (fields.has("max_tokens")) request.max_tokens = fields.integer("max_tokens", 0, model.sequence_length);
  if (fields.has("n")) request.n = fields.integer("n", 1, static_cast<int64_t>(model.most_choices));
  if (fields.has("temperature")) request.sampling.temperature = fields.number("temperature", 0, 2);
  if (fields.has("top_p")) request.sampling.top_p = fields.number("top_p", 0, 1);
  request.sampling.seed = fields.has("seed")
                              ? static_cast<uint64_t>(fields.integer("seed"))
                              : (uint64_t{std::random_device()()} << 32 | std::random_device()());
  if (fields.has("logprobs")) request.log_probs = fields.integer("logprobs", 0, kMostLogProbs);
  request.target_experts = target_of(fields, model);
  request.stop = stops_of(fields);
  request.echo = fields.get("echo", false);
  request.stream = fields.get("stream", false);
  if (fields.has("stream_options"))
    request.include_usage = fields.object("stream_options").get("include_usage", false);
  require_absent(fields, "best_of", {json(request.n)});
  for (const char* penalty : {"presence_penalty", "frequency_penalty"})
    require_absent(fields, penalty, {json(0)});
  require_absent(fields, "logit_bias", {json::object()});
  require_absent(fields, "suffix", {json("")});
  if (request.max_tokens == 0 && !request.echo) fields.fail("max_tokens", "must be at least 1 without echo");
  request.prompts = prompts_of(fields, model, tokenizer);
  check_lengths(fields, request, model);
  for (const std::vector<int32_t>& prompt : request.prompts)
    request.prompt_texts.push_back(tokenizer.decode(prompt));
  return request;
}

}  // namespace

http::Answer error_answer(const ApiError& error) {
  ordered_json body = {
      {"message", error.what()}, {"type", type_of(error.status)}, {"param", nullptr}, {"code", nullptr}};
  if (!error.field.empty()) body["param"] = error.field;
  if (error.status == 404 && error.field == "model") body["code"] = "model_not_found";
  http::Answer answer{error.status, "application/json", dump_json({{"error", body}}) + "\n"};
  if (error.status == 401) answer.fields = {{"WWW-Authenticate", "Bearer"}};
  if (error.status == 429 || error.status == 503) answer.fields = {{"Retry-After", "1"}};
  return answer;
}

CompletionRequest read_completion_request(std::string_view body, const ServedModel& model,
                                          const data::Tokenizer& tokenizer) try {
  return read(JsonFields(body, "request"), model, tokenizer);
} catch (const FieldError& error) {
  throw ApiError(400, error.field + ": " + error.cause, error.field);
} catch (const DataError& error) {  // no JSON, or a text that is not UTF-8
  throw ApiError(400, error.what());
}

std::vector<inference::SequenceInput> sequences_of(const CompletionRequest& request) {
  std::vector<inference::SequenceInput> sequences;
  for (const std::vector<int32_t>& prompt : request.prompts) {
    for (int64_t i = 0; i < request.n; ++i) {
      inference::SequenceInput& sequence = sequences.emplace_back();
      sequence.ids = prompt;
      sequence.max_tokens = std::max<int64_t>(request.max_tokens, 1);  // a prompt needs one to be computed
      sequence.sampling = request.sampling;
      sequence.index = sequences.size() - 1;
      sequence.budget = request.target_experts.value_or(0);
      sequence.likeliest = request.log_probs;
      sequence.scores_prompt = request.echo;
    }
  }
  return sequences;
}

}  // namespace dtopp::serve

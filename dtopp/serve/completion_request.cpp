#include "dtopp/serve/completion_request.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/config/config.h"

namespace dtopp::serve {
namespace {

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

[[noreturn]] void fail(const std::string& field, const std::string& cause) {
  throw ApiError(400, field + ": " + cause, field);
}

// The members of a JSON object. null counts as missing.
class Fields {
 public:
  Fields(const json& object, const std::string& place) : object_(object), place_(place) {
    if (!object.is_object()) throw ApiError(400, place + ": is not a JSON object", place);
  }

  const json* find(const std::string& name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  int64_t integer(const std::string& name, int64_t otherwise, int64_t lowest, int64_t highest) const {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    const bool fits = value->is_number_integer() &&
                      (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t{INT64_MAX});
    if (!fits || value->get<int64_t>() < lowest || value->get<int64_t>() > highest)
      fail(name, format("must be a whole number from %lld to %lld", static_cast<long long>(lowest),
                        static_cast<long long>(highest)));
    return value->get<int64_t>();
  }
  double number(const std::string& name, double otherwise, double lowest, double highest) const {
    const json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_number() || !(value->get<double>() >= lowest && value->get<double>() <= highest))
      fail(name, format("must be a number from %g to %g", lowest, highest));
    return value->get<double>();
  }
  bool boolean(const std::string& name) const {
    const json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) fail(name, "must be true or false");
    return value->get<bool>();
  }
  // Refuses a value other than those that change nothing.
  void require_absent(const std::string& name, const std::vector<json>& harmless) const {
    const json* value = find(name);
    if (value != nullptr && std::ranges::find(harmless, *value) == harmless.end())
      fail(name, "is not supported");
  }

 private:
  const json& object_;
  std::string place_;
};

std::vector<int32_t> ids_of(const json& list, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= vocab_size)
      fail("prompt",
           format("token ids must be whole numbers below %lld", static_cast<long long>(vocab_size)));
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::vector<std::vector<int32_t>> prompts_of(const json* value, const ServedModel& model,
                                             const data::Tokenizer& tokenizer) {
  const auto encode = [&](const json& text) {
    if (!text.is_string())
      fail("prompt", "must be a text, a list of texts, or one or several lists of token ids");
    return tokenizer.encode(text.get_ref<const std::string&>());
  };
  if (value == nullptr) fail("prompt", "is missing");
  if (!value->is_array()) return {encode(*value)};
  if (value->empty()) fail("prompt", "is empty");
  if (value->front().is_number()) return {ids_of(*value, model.vocab_size)};
  if (value->size() > model.most_choices)
    fail("prompt", format("holds more than %zu prompts", model.most_choices));
  std::vector<std::vector<int32_t>> prompts;
  for (const json& prompt : *value)
    prompts.push_back(prompt.is_array() ? ids_of(prompt, model.vocab_size) : encode(prompt));
  return prompts;
}

std::vector<std::string> stops_of(const json* value) {
  if (value == nullptr) return {};
  std::vector<std::string> stops;
  for (const json& stop : value->is_array() ? *value : json::array({*value})) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty() ||
        stop.get_ref<const std::string&>().size() > kLongestStop)
      fail("stop", format("must be one to four texts of 1 to %zu bytes", kLongestStop));
    stops.push_back(stop.get<std::string>());
  }
  if (stops.size() > kMostStops) fail("stop", "holds more than four texts");
  return stops;
}

// Returns the requested budget. Explains why a model has none.
std::optional<int64_t> target_of(const Fields& fields, const ServedModel& model) {
  if (fields.find("target_experts") == nullptr) return std::nullopt;
  if (model.largest_budget == 0)
    fail("target_experts", "this model has no routing threshold, so its number of experts is fixed");
  if (model.budgets.empty())
    fail("target_experts", "no thresholds were solved; start dtopp serve with --calibration TEXT");
  return fields.integer("target_experts", 0, 1, model.largest_budget);
}

void check_lengths(const CompletionRequest& request, const ServedModel& model) {
  if (request.prompts.size() * static_cast<size_t>(request.n) > model.most_choices)
    fail("n", format("prompts times n exceed %zu", model.most_choices));
  for (const std::vector<int32_t>& prompt : request.prompts) {
    if (prompt.empty()) fail("prompt", "holds no token");
    const auto tokens = static_cast<int64_t>(prompt.size()) + request.max_tokens;
    if (tokens > model.sequence_length)
      fail("max_tokens",
           format("the prompt's %zu tokens and max_tokens %lld exceed the model's sequence length "
                  "of %lld",
                  prompt.size(), static_cast<long long>(request.max_tokens),
                  static_cast<long long>(model.sequence_length)));
  }
}

CompletionRequest read(const json& object, const ServedModel& model, const data::Tokenizer& tokenizer) {
  const Fields fields(object, "request");
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::find(kKnownFields, name) == kKnownFields.end())
      throw ApiError(400,
                     "unknown field " + config::quote_for_message(name) + "; " +
                         config::suggest(name, kKnownFields, "known:", kKnownFields),
                     name);
  }
  const json* name = fields.find("model");
  if (name != nullptr && *name != model.name)
    throw ApiError(404, "model: the model " + dump_json(*name) + " is not served here; " + model.name + " is",
                   "model");
  CompletionRequest request;
  request.max_tokens = fields.integer("max_tokens", request.max_tokens, 0, model.sequence_length);
  request.n = fields.integer("n", 1, 1, static_cast<int64_t>(model.most_choices));
  request.sampling.temperature = fields.number("temperature", 1, 0, 2);
  request.sampling.top_p = fields.number("top_p", 1, 0, 1);
  request.sampling.seed = fields.find("seed") != nullptr
                              ? static_cast<uint64_t>(fields.integer("seed", 0, INT64_MIN, INT64_MAX))
                              : (uint64_t{std::random_device()()} << 32 | std::random_device()());
  if (fields.find("logprobs") != nullptr) request.log_probs = fields.integer("logprobs", 0, 0, kMostLogProbs);
  request.target_experts = target_of(fields, model);
  request.stop = stops_of(fields.find("stop"));
  request.echo = fields.boolean("echo");
  request.stream = fields.boolean("stream");
  if (const json* options = fields.find("stream_options"))
    request.include_usage = Fields(*options, "stream_options").boolean("include_usage");
  fields.require_absent("best_of", {json(request.n)});
  for (const char* penalty : {"presence_penalty", "frequency_penalty"})
    fields.require_absent(penalty, {json(0)});
  fields.require_absent("logit_bias", {json::object()});
  fields.require_absent("suffix", {json("")});
  if (request.max_tokens == 0 && !request.echo) fail("max_tokens", "must be at least 1 without echo");
  request.prompts = prompts_of(fields.find("prompt"), model, tokenizer);
  check_lengths(request, model);
  for (const std::vector<int32_t>& prompt : request.prompts)
    request.prompt_texts.push_back(tokenizer.decode(prompt));
  return request;
}

}  // namespace

CompletionRequest read_completion_request(std::string_view body, const ServedModel& model,
                                          const data::Tokenizer& tokenizer) try {
  return read(parse_json(body, "request"), model, tokenizer);
} catch (const DataError& error) {  // no JSON, or a text that is not UTF-8
  throw ApiError(400, error.what());
}

std::vector<inference::SequenceInput> sequences_of(const CompletionRequest& request,
                                                   const ServedModel& model) {
  std::vector<inference::SequenceInput> sequences;
  for (const std::vector<int32_t>& prompt : request.prompts) {
    for (int64_t i = 0; i < request.n; ++i) {
      inference::SequenceInput& sequence = sequences.emplace_back();
      sequence.ids = prompt;
      sequence.max_tokens = std::max<int64_t>(request.max_tokens, 1);  // a prompt needs one to be computed
      sequence.sampling = request.sampling;
      sequence.index = sequences.size() - 1;
      if (request.target_experts) sequence.router = model.budgets.at(*request.target_experts - 1);
      sequence.likeliest = request.log_probs;
      sequence.scores_prompt = request.echo;
    }
  }
  return sequences;
}

}  // namespace dtopp::serve

#include "dtopp/serve/completion.h"

#include <ctime>

#include <nlohmann/json.hpp>

#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/base/progress.h"

namespace dtopp::serve {
namespace {

constexpr std::array<double, 10> kBounds = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300};  // seconds

void begin(std::string& out, const std::string& name, const char* type, const char* help) {
  out += "# HELP " + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
}

void print_number(std::string& out, const std::string& name, const char* type, const char* help,
                  uint64_t value) {
  begin(out, name, type, help);
  out += name + " " + std::to_string(value) + "\n";
}

// Returns the number of characters of UTF-8 text.
int64_t characters_of(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

void send_event(http::Exchange& exchange, const ordered_json& event) {
  exchange.send("data: " + dump_json(event) + "\n\n");
}

}  // namespace

std::string StopStrings::add(std::string_view text) {
  if (found_) return {};
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    found_ = true;
    return held_.substr(0, first);
  }
  size_t shown = held_.size();
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > 0; --length) {
      if (!held_.ends_with(std::string_view(stop).substr(0, length))) continue;
      shown = std::min(shown, held_.size() - length);
      break;
    }
  }
  std::string result = held_.substr(0, shown);
  held_.erase(0, shown);
  return result;
}

void Metrics::Histogram::add(double value) {
  size_t bound = 0;
  while (bound < kBounds.size() && value > kBounds.at(bound)) ++bound;
  if (bound < counts.size()) ++counts.at(bound);
  ++count;
  sum += value;
}

void Metrics::count_tokens(int64_t target, uint64_t tokens, double active_experts) {
  const std::lock_guard lock(mutex_);
  budgets_[target].tokens += tokens;
  budgets_[target].experts += active_experts;
}

void Metrics::count_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void Metrics::count_request(int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++requests_[status];
  if (status == 200) request_.add(seconds);
}

void Metrics::print(std::string& out, const std::string& name, const char* help, const Histogram& histogram) {
  begin(out, name, "histogram", help);
  uint64_t below = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    below += histogram.counts.at(i);
    out += name + format("_bucket{le=\"%g\"} ", kBounds.at(i)) + std::to_string(below) + "\n";
  }
  out += name + "_bucket{le=\"+Inf\"} " + std::to_string(histogram.count) + "\n";
  out += name + format("_sum %.9g\n", histogram.sum);
  out += name + "_count " + std::to_string(histogram.count) + "\n";
}

std::string Metrics::text(const inference::Scheduler& scheduler) const {
  const inference::Scheduler::Load load = scheduler.load();
  const std::lock_guard lock(mutex_);
  std::string out;
  begin(out, "dtopp_requests_total", "counter",
        "Answered completion requests; 499: ended before their answer.");
  for (const auto& [status, count] : requests_)
    out += format("dtopp_requests_total{status=\"%d\"} ", status) + std::to_string(count) + "\n";
  print_number(out, "dtopp_sequences_running", "gauge", "Sequences in the batch.", load.running);
  print_number(out, "dtopp_sequences_waiting", "gauge", "Sequences in the queue.", load.waiting);
  print_number(out, "dtopp_cache_tokens_reserved", "gauge", "Tokens reserved in the key-value cache.",
               static_cast<uint64_t>(load.cache_tokens));
  print_number(out, "dtopp_cache_tokens_limit", "gauge", "Largest number of reserved tokens.",
               static_cast<uint64_t>(scheduler.limits().cache_tokens));
  print_number(out, "dtopp_prompt_tokens_total", "counter", "Tokens of prompts.", prompt_tokens_);
  print_number(out, "dtopp_generated_tokens_total", "counter", "Generated tokens.", generated_tokens_);
  begin(out, "dtopp_computed_tokens_total", "counter",
        "Tokens that passed through the model, by target_experts (0: the checkpoint's threshold).");
  for (const auto& [target, budget] : budgets_)
    out += format("dtopp_computed_tokens_total{target_experts=\"%ld\"} ", target) +
           std::to_string(budget.tokens) + "\n";
  begin(out, "dtopp_active_experts_total", "counter",
        "Active experts of these tokens, mean over layers; divided by the tokens: experts per token.");
  for (const auto& [target, budget] : budgets_)
    out += format("dtopp_active_experts_total{target_experts=\"%ld\"} %.17g\n", target, budget.experts);
  print(out, "dtopp_first_token_seconds", "Time from a request to its first token.", first_token_);
  print(out, "dtopp_request_seconds", "Time from a request to the end of its answer.", request_);
  return out;
}

Completion::Completion(CompletionRequest request, const ServedModel& model, const data::Tokenizer& tokenizer,
                       Metrics& metrics, std::shared_ptr<http::Exchange> exchange)
    : request_(std::move(request)),
      model_(model),
      tokenizer_(tokenizer),
      metrics_(metrics),
      exchange_(std::move(exchange)),
      id_("cmpl-" + http::random_token()),
      created_(std::time(nullptr)),
      began_(steady_seconds()),
      choices_(request_.prompts.size() * static_cast<size_t>(request_.n),
               Choice{inference::TextStream(tokenizer), StopStrings(request_.stop)}),
      unfinished_(choices_.size()) {}

Completion::~Completion() {
  if (!is_counted_) metrics_.count_request(499, steady_seconds() - began_);
}

void Completion::refuse(const ApiError& error) {
  is_counted_ = true;
  metrics_.count_request(error.status, steady_seconds() - began_);
  exchange_->answer(error_answer(error));
}

bool Completion::receive(size_t sequence, const inference::GeneratedToken& token) {
  Choice& choice = choices_.at(sequence);
  const double experts = std::accumulate(token.input_experts.begin(), token.input_experts.end(), 0.0);
  metrics_.count_tokens(request_.target_experts.value_or(0), token.input_experts.size(), experts);
  computed_ += token.input_experts.size();
  experts_ += experts;
  if (!std::exchange(choice.has_begun, true)) {
    if (computed_ == token.input_experts.size()) {
      metrics_.count_first_token(steady_seconds() - began_);
      if (request_.stream) exchange_->begin_stream("text/event-stream; charset=utf-8");
    }
    metrics_.count_prompt(token.input_experts.size());
    if (request_.echo) echo(sequence, token);
  }
  std::string text;
  if (request_.max_tokens == 0) {
    choice.reason = "length";
  } else {
    add_generated(choice, token, text);
  }
  if (!text.empty() || choice.reason != nullptr) show(sequence, text);
  if (choice.reason == nullptr) return true;
  if (--unfinished_ == 0) end_request();
  return false;
}

// Shows the prompt. Its first token has neither a score nor a token before it.
void Completion::echo(size_t index, const inference::GeneratedToken& token) {
  Choice& choice = choices_.at(index);
  const std::vector<int32_t>& prompt = request_.prompts.at(index / static_cast<size_t>(request_.n));
  inference::TextStream stream(tokenizer_);
  for (size_t t = 0; t < prompt.size(); ++t) {
    ShownToken& shown =
        choice.pending.emplace_back(ShownToken{prompt[t], choice.characters, -1, std::nullopt});
    if (t > 0) shown.active_experts = token.input_experts.at(t - 1);
    if (t > 0 && request_.log_probs) shown.score = token.scores.at(t - 1);
    choice.characters += characters_of(stream.add(prompt[t]));
  }
  const std::string& text = request_.prompt_texts.at(index / static_cast<size_t>(request_.n));
  choice.characters = characters_of(text);
  show(index, text);
}

// Adds a generated token. `text` is what can be shown of it and of earlier ones.
void Completion::add_generated(Choice& choice, const inference::GeneratedToken& token, std::string& text) {
  const bool is_end = token.id == model_.end_of_text;
  std::string added;
  if (!is_end) {
    choice.generated += 1;
    metrics_.count_generated();
    ShownToken shown{token.id, choice.characters, token.active_experts, std::nullopt};
    if (request_.log_probs) shown.score = token.scores.back();
    choice.pending.push_back(std::move(shown));
    added = choice.stream.add(token.id);
  }
  const bool is_last = is_end || choice.generated == request_.max_tokens;
  if (is_last) added += choice.stream.rest();
  choice.characters += characters_of(added);
  text = choice.stops.add(added);
  if (is_last) {
    text += choice.stops.rest();
    choice.reason = is_end ? "stop" : "length";
  }
  if (choice.stops.found()) choice.reason = "stop";
}

// Shows text and the tokens that begin in it. At the end of a choice, all tokens that no stop string removed.
void Completion::show(size_t index, const std::string& text) {
  Choice& choice = choices_.at(index);
  choice.shown += characters_of(text);
  const bool all = choice.reason != nullptr && !choice.stops.found();
  const auto end = std::ranges::find_if(
      choice.pending, [&](const ShownToken& token) { return !all && token.offset >= choice.shown; });
  const std::vector<ShownToken> tokens(std::make_move_iterator(choice.pending.begin()),
                                       std::make_move_iterator(end));
  choice.pending.erase(choice.pending.begin(), end);
  if (request_.stream) {
    ordered_json event = head();
    event["choices"] = ordered_json::array({choice_json(index, text, tokens)});
    send_event(*exchange_, event);
  } else {
    choice.text += text;
    choice.tokens.insert(choice.tokens.end(), tokens.begin(), tokens.end());
  }
}

void Completion::end_request() {
  is_counted_ = true;
  metrics_.count_request(200, steady_seconds() - began_);
  ordered_json answer = head();
  answer["choices"] = ordered_json::array();
  if (request_.stream) {
    if (request_.include_usage) {
      answer["usage"] = usage();
      send_event(*exchange_, answer);
    }
    exchange_->send("data: [DONE]\n\n");
    return exchange_->end_stream();
  }
  for (size_t i = 0; i < choices_.size(); ++i)
    answer["choices"].push_back(choice_json(i, choices_[i].text, choices_[i].tokens));
  answer["usage"] = usage();
  exchange_->answer({.type = "application/json", .body = dump_json(answer) + "\n"});
}

ordered_json Completion::head() const {
  return {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", model_.name}};
}

ordered_json Completion::choice_json(size_t index, const std::string& text,
                                     const std::vector<ShownToken>& tokens) const {
  const char* reason = choices_.at(index).reason;
  ordered_json choice = {{"index", index},
                         {"text", text},
                         {"logprobs", request_.log_probs ? log_probs_json(tokens) : ordered_json()},
                         {"finish_reason", reason == nullptr ? ordered_json() : ordered_json(reason)}};
  if (model_.num_experts == 0) return choice;
  ordered_json& experts = choice["active_experts"] = ordered_json::array();
  for (const ShownToken& token : tokens)
    experts.push_back(token.active_experts < 0 ? ordered_json() : ordered_json(token.active_experts));
  return choice;
}

ordered_json Completion::log_probs_json(const std::vector<ShownToken>& tokens) const {
  const auto text_of = [&](int32_t id) { return tokenizer_.decode_generated(std::span(&id, 1)); };
  ordered_json texts = ordered_json::array(), own = texts, likeliest = texts, offsets = texts;
  for (const ShownToken& token : tokens) {
    texts.push_back(text_of(token.id));
    offsets.push_back(token.offset);
    own.push_back(token.score ? ordered_json(token.score->log_prob) : ordered_json());
    ordered_json& top = likeliest.emplace_back(token.score ? ordered_json::object() : ordered_json());
    if (!token.score) continue;
    top[text_of(token.id)] = token.score->log_prob;
    for (const auto& [id, log_prob] : token.score->likeliest) top[text_of(id)] = log_prob;
  }
  return {{"tokens", texts}, {"token_logprobs", own}, {"top_logprobs", likeliest}, {"text_offset", offsets}};
}

// active_experts: mean over all tokens that the model computed, of the prompts and of the answer.
ordered_json Completion::usage() const {
  size_t prompt = 0;
  for (const std::vector<int32_t>& ids : request_.prompts) prompt += ids.size();
  int64_t generated = 0;
  for (const Choice& choice : choices_) generated += choice.generated;
  ordered_json usage = {{"prompt_tokens", prompt},
                        {"completion_tokens", generated},
                        {"total_tokens", static_cast<int64_t>(prompt) + generated}};
  if (model_.num_experts > 0) usage["active_experts"] = experts_ / static_cast<double>(computed_);
  return usage;
}

}  // namespace dtopp::serve

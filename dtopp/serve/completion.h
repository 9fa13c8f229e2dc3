// Turns the tokens of one request into its answer, whole or as a stream of events.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dtopp/http/server.h"
#include "dtopp/inference/scheduler.h"
#include "dtopp/inference/text_generation.h"
#include "dtopp/serve/completion_request.h"

namespace dtopp::serve {

// Ends a text before the first of some stop strings, which may span several tokens.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Adds text and returns what can be shown: all before a stop string, or before a part that may become one.
  std::string add(std::string_view text);
  // Returns the text that add() holds back, at the end of all text.
  std::string rest() { return found_ ? std::string() : std::exchange(held_, {}); }
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // no stop string, but perhaps the beginning of one
  bool found_ = false;
};

// Counts what `dtopp serve` does, for Prometheus. Any thread may use it.
class Metrics {
 public:
  // Tokens that were computed: of prompts, or fed back after they were generated. `target`: the request's
  // target_experts, or 0.
  void count_tokens(int64_t target, uint64_t tokens, double active_experts);
  void count_prompt(uint64_t tokens) { prompt_tokens_ += tokens; }
  void count_generated() { generated_tokens_ += 1; }
  void count_first_token(double seconds);
  // status 499: the client left, or its time was over.
  void count_request(int status, double seconds);

  // The text of GET /metrics (Prometheus text format 0.0.4).
  std::string text(const inference::Scheduler& scheduler) const;

 private:
  struct Histogram {
    std::array<uint64_t, 10> counts{};  // per bound of kBounds, not cumulative
    uint64_t count = 0;
    double sum = 0;
    void add(double value);
  };
  struct Budget {
    uint64_t tokens = 0;
    double experts = 0;
  };
  static void print(std::string& out, const std::string& name, const char* help, const Histogram& histogram);

  mutable std::mutex mutex_;
  std::map<int64_t, Budget> budgets_;
  std::map<int, uint64_t> requests_;
  std::atomic<uint64_t> prompt_tokens_ = 0, generated_tokens_ = 0;
  Histogram first_token_, request_;
};

class Completion final : public inference::TokenReceiver {
 public:
  // All references must outlive the object.
  Completion(CompletionRequest request, const ServedModel& model, const data::Tokenizer& tokenizer,
             Metrics& metrics, std::shared_ptr<http::Exchange> exchange);
  ~Completion() override;

  bool receive(size_t sequence, const inference::GeneratedToken& token) override;
  bool is_needed() const override { return exchange_->is_open(); }
  // Refuses the request instead. Call it before it is submitted, or if it cannot be.
  void refuse(const ApiError& error);

 private:
  // A token as answers show it.
  struct ShownToken {
    int32_t id;
    int64_t offset;         // characters of the choice's text before it
    double active_experts;  // of the token before it; negative: there is none
    std::optional<inference::TokenScore> score;
  };
  struct Choice {
    inference::TextStream stream;
    StopStrings stops;
    std::vector<ShownToken> pending{};  // tokens whose text is held back
    int64_t characters = 0, shown = 0;  // of all text, and of the text that was shown
    int64_t generated = 0;
    bool has_begun = false;
    std::string text{};  // without a stream
    std::vector<ShownToken> tokens{};
    const char* reason = nullptr;  // why it ended
  };

  void echo(size_t index, const inference::GeneratedToken& token);
  void add_generated(Choice& choice, const inference::GeneratedToken& token, std::string& text);
  void show(size_t index, const std::string& text);
  void end_request();
  nlohmann::ordered_json head() const;
  nlohmann::ordered_json choice_json(size_t index, const std::string& text,
                                     const std::vector<ShownToken>& tokens) const;
  nlohmann::ordered_json log_probs_json(const std::vector<ShownToken>& tokens) const;
  nlohmann::ordered_json usage() const;

  CompletionRequest request_;
  const ServedModel& model_;
  const data::Tokenizer& tokenizer_;
  Metrics& metrics_;
  std::shared_ptr<http::Exchange> exchange_;
  std::string id_;
  int64_t created_;
  double began_;  // steady_seconds()
  std::vector<Choice> choices_;
  size_t unfinished_;
  bool is_counted_ = false;
  uint64_t computed_ = 0;  // tokens
  double experts_ = 0;     // sum over them
};

}  // namespace dtopp::serve

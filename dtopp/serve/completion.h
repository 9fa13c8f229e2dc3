// Turns the tokens of one request into its answer, whole or as a stream of events.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "dtopp/http/server.h"
#include "dtopp/inference/scheduler.h"
#include "dtopp/inference/text_generation.h"
#include "dtopp/serve/completion_request.h"
#include "dtopp/serve/metrics.h"
#include "dtopp/serve/stop_strings.h"

namespace dtopp::serve {

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

#include "dtopp/serve/metrics.h"

#include "dtopp/base/format.h"

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

}  // namespace

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

void Metrics::count_prompt(uint64_t tokens) {
  const std::lock_guard lock(mutex_);
  prompt_tokens_ += tokens;
}

void Metrics::count_generated() {
  const std::lock_guard lock(mutex_);
  ++generated_tokens_;
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
    out += format("dtopp_computed_tokens_total{target_experts=\"%lld\"} ", static_cast<long long>(target)) +
           std::to_string(budget.tokens) + "\n";
  begin(out, "dtopp_active_experts_total", "counter",
        "Active experts of these tokens, mean over layers; divided by the tokens: experts per token.");
  for (const auto& [target, budget] : budgets_)
    out += format("dtopp_active_experts_total{target_experts=\"%lld\"} %.17g\n",
                  static_cast<long long>(target), budget.experts);
  print(out, "dtopp_first_token_seconds", "Time from a request to its first token.", first_token_);
  print(out, "dtopp_request_seconds", "Time from a request to the end of its answer.", request_);
  return out;
}

}  // namespace dtopp::serve

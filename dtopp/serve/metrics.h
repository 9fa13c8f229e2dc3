// Counts what `dtopp serve` does, for Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "dtopp/inference/scheduler.h"

namespace dtopp::serve {

// Any thread may use it.
class Metrics {
 public:
  // Tokens that were computed: of prompts, or fed back after they were generated. `target`: the request's
  // target_experts, or 0.
  void count_tokens(int64_t target, uint64_t tokens, double active_experts);
  void count_prompt(uint64_t tokens);
  void count_generated();
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
  uint64_t prompt_tokens_ = 0, generated_tokens_ = 0;
  Histogram first_token_, request_;
};

}  // namespace dtopp::serve

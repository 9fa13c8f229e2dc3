// Carries a request to stop to long work, which polls it where it can stop.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>

namespace dtopp {

class StopToken {
 public:
  StopToken() = default;  // never requests a stop
  // `requested` must outlive every copy of the token. A signal handler or another thread may set it.
  explicit StopToken(const std::atomic<bool>& requested) : requested_(&requested) {}

  // The same token, which also requests a stop from `deadline` on.
  StopToken until(std::chrono::steady_clock::time_point deadline) const {
    StopToken token = *this;
    token.deadline_ = deadline;
    return token;
  }

  bool is_past_deadline() const { return deadline_ && std::chrono::steady_clock::now() >= *deadline_; }
  bool stop_requested() const { return (requested_ != nullptr && requested_->load()) || is_past_deadline(); }

 private:
  const std::atomic<bool>* requested_ = nullptr;
  std::optional<std::chrono::steady_clock::time_point> deadline_{};
};

}  // namespace dtopp

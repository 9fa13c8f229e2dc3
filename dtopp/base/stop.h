// Requests to stop long work.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "dtopp/base/errors.h"

namespace dtopp {

// Carries a request to stop to long work, which polls it where it can stop.
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

// A stop before anything was written. Each rank throws it by itself, without agreement with the others.
struct StoppedEarly : Stopped {
  using Stopped::Stopped;
};

// While it exists, end_if_stopped() throws on this thread after a request to stop. Other threads continue.
class StopScope {
 public:
  explicit StopScope(const StopToken& stop) : outer_(std::exchange(current, stop)) {}
  ~StopScope() { current = outer_; }
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  static inline thread_local StopToken current;

 private:
  StopToken outer_;
};

// Throws StoppedEarly if a stop was requested and this thread is in a StopScope. Call it at least once per
// second of work.
inline void end_if_stopped() {
  if (StopScope::current.stop_requested())
    throw StoppedEarly("stopped before anything was written; run the same command again");
}

}  // namespace dtopp

// Carries a request to stop to long work, which polls it where it can stop.
#pragma once

#include <atomic>

namespace dtopp {

class StopToken {
 public:
  StopToken() = default;  // never requests a stop
  // `requested` must outlive every copy of the token. A signal handler or another thread may set it.
  explicit StopToken(const std::atomic<bool>& requested) : requested_(&requested) {}

  bool stop_requested() const { return requested_ != nullptr && requested_->load(); }

 private:
  const std::atomic<bool>* requested_ = nullptr;
};

}  // namespace dtopp

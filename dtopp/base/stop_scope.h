// Ends long work that has written nothing yet at a request to stop, without a token through every function.
#pragma once

#include "dtopp/base/errors.h"
#include "dtopp/base/stop_token.h"

namespace dtopp {

// A stop before anything was written. Each rank throws it by itself, without agreement with the others.
struct StoppedEarly : Stopped {
  using Stopped::Stopped;
};

// While it exists, end_if_stopped() throws on this thread after a request to stop. Other threads continue.
class StopScope {
 public:
  explicit StopScope(const StopToken& stop);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  StopToken outer_;
};

// Throws StoppedEarly if a stop was requested and this thread is in a StopScope. Call it at least once per
// second of work.
void end_if_stopped();

}  // namespace dtopp

#include "dtopp/base/stop.h"

#include <utility>

namespace dtopp {
namespace {

thread_local StopToken scope;

}  // namespace

StopScope::StopScope(const StopToken& stop) : outer_(std::exchange(scope, stop)) {}
StopScope::~StopScope() { scope = outer_; }

void end_if_stopped() {
  if (scope.stop_requested())
    throw StoppedEarly("stopped before anything was written; run the same command again");
}

}  // namespace dtopp

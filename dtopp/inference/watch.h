// Shows the progress of a measurement and can stop it.
#pragma once

#include <cstdint>
#include <string>

#include "dtopp/base/stop.h"

namespace dtopp::inference {

// This class shows nothing.
class Watch {
 public:
  explicit Watch(StopToken stop = {}) : stop_(stop) {}
  virtual ~Watch() = default;
  // Begins work of `total` units, for example 200 "items".
  virtual void begin(const std::string& /*label*/, const char* /*unit*/, uint64_t /*total*/) {}
  virtual void update(uint64_t /*done*/) {}  // units, approximately over all ranks
  virtual void message(const std::string& /*text*/) {}
  // Called before each batch.
  virtual bool stop_requested() { return stop_.stop_requested(); }

 private:
  StopToken stop_;
};

}  // namespace dtopp::inference

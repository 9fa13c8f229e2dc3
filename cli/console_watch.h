// Draws the progress of a measurement on standard error and stops it on a signal.
#pragma once

#include <optional>
#include <string>

#include "cli/stop_signals.h"
#include "dtopp/base/progress.h"
#include "dtopp/distributed/collectives/collectives.h"
#include "dtopp/inference/watch.h"

namespace dtopp::cli {

class ConsoleWatch final : public inference::Watch {
 public:
  // Without `shows`, it only stops.
  explicit ConsoleWatch(bool shows) : inference::Watch(stop_token()), shows_(shows) {}
  // Rank 0 shows the progress of all ranks.
  explicit ConsoleWatch(const distributed::Collectives& ranks) : ConsoleWatch(ranks.rank() == 0) {}

  void begin(const std::string& label, const char* unit, uint64_t total) override;
  void update(uint64_t done) override;
  void message(const std::string& text) override;
  void end() { bar_.reset(); }

 private:
  bool shows_;
  std::optional<ProgressBar> bar_;
};

}  // namespace dtopp::cli

// The standard streams, the signals and the progress of a command.
#pragma once

#include "dtopp/base/progress.h"
#include "dtopp/base/stop.h"
#include "dtopp/distributed/collectives.h"
#include "dtopp/inference/shared_batches.h"

namespace dtopp::cli {
// Prints the line "dtopp: TEXT" to standard error.
void print_message(const std::string& text);

// Sets up signals and standard streams; call it before anything else.
//
// A write to a closed pipe or beyond a file-size limit then returns an error instead of killing the process.
// A run therefore continues without its console. Streams that the caller closed stay unusable: no file that
// is opened later gets their descriptor and receives text meant for them.
void guard_standard_streams();

// Flushes standard output. Throws DataError if it cannot be written.
void flush_standard_output();

// Flushes all streams and ends the process. Skips the destructors of the libraries' static objects, which
// take longer than many commands.
[[noreturn]] void end_process(int status);

// Handles SIGTERM, SIGINT and SIGHUP (a closed terminal): the command saves and stops. A second SIGTERM or
// SIGINT at least a tenth of a second later ends the process immediately, unless `second_ends` is false. An
// ignored SIGHUP stays ignored.
void stop_on_signals(bool second_ends = true);

bool stop_requested();   // true after a signal has arrived
StopToken stop_token();  // the same as a value

// Draws the progress of a measurement on standard error and stops it on a signal.
class ConsoleWatch final : public inference::Watch {
 public:
  // Without `shows`, it only stops.
  explicit ConsoleWatch(bool shows) : inference::Watch(stop_token()), shows_(shows) {}
  // Rank 0 shows the progress of all ranks.
  explicit ConsoleWatch(const distributed::Collectives& ranks) : ConsoleWatch(ranks.rank() == 0) {}

  void begin(const std::string& label, const char* unit, uint64_t total) override {
    if (shows_) bar_.emplace(label, unit, total);
  }
  void update(uint64_t done) override {
    if (bar_) bar_->update(done);
  }
  void message(const std::string& text) override {
    if (shows_) print_message(text);
  }
  void end() { bar_.reset(); }

 private:
  bool shows_;
  std::optional<ProgressBar> bar_;
};

// Returns, for example, "0.1.0, build 1b2c…": the version and a checksum of the executable and dtopp's
// libraries, by which ranks check that all of them run the same program.
std::string program_version();

}  // namespace dtopp::cli

// Draws progress bars and status lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

namespace dtopp {

// The time of a steady clock, for measuring durations.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// One line with `done` of `total`, the rate and the remaining time. A `total` of 0 means unknown. `start` was
// done before the clock began; the rate does not count it. Example:
//
//   tokenize   43%  1.20M/2.80M tok  310k tok/s  5.2s left
std::string progress_line(const std::string& label, const std::string& unit, uint64_t done, uint64_t total,
                          double seconds, uint64_t start = 0);

// A status line. On a terminal each draw replaces the last one, cut to the terminal's width; elsewhere each
// draw prints a new line. Not thread-safe.
class StatusLine {
 public:
  explicit StatusLine(std::FILE* stream);
  ~StatusLine() { end(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool on_terminal() const { return on_terminal_; }
  void draw(const std::string& text);
  // Clears the line on a terminal, so that another line can be printed there.
  void clear();
  // Keeps the last text on the terminal and prints a newline.
  void end();

 private:
  std::FILE* stream_;
  bool on_terminal_;
  size_t width_ = 0;  // characters of the text on the terminal; 0: none
};

// Draws progress_line on standard error: five times per second in place on a terminal, elsewhere as a new
// line every 30 seconds, which keeps logs short. Not thread-safe.
class ProgressBar {
 public:
  // `unit` names what is counted ("tok", "docs"); "B" counts bytes.
  ProgressBar(std::string label, std::string unit, uint64_t total = 0, std::FILE* stream = stderr);
  ~ProgressBar() { finish(); }

  // Sets what a resumed job has already done; the rate does not count it.
  void set_start(uint64_t done) { start_ = done_ = done; }
  // Sets a text for the end of the line, such as a second rate.
  void set_note(std::string note) { note_ = std::move(note); }
  // `done` is the total so far, not the increase since the last call.
  void update(uint64_t done);
  // Keeps the last state on the screen and prints a newline. A second call does nothing.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now);
  Clock::duration interval() const;  // between two draws

  std::string label_, unit_, note_;
  uint64_t total_;
  StatusLine line_;
  uint64_t start_ = 0, done_ = 0;
  Clock::time_point began_, next_draw_;
  bool drawn_ = false, finished_ = false;
};

// Prints the lines of a run, or nothing on ranks that are to be silent. Copies print to the same console.
class ConsoleLog {
 public:
  ConsoleLog() = default;  // prints nothing
  explicit ConsoleLog(std::FILE* out) : out_(out), status_(std::make_shared<StatusLine>(out)) {}

  void line(const std::string& text) const {
    if (out_ == nullptr) return;
    status_->clear();
    std::fprintf(out_, "%s\n", text.c_str());
  }
  void message(const std::string& text) const { line("dtopp: " + text); }
  void warning(const std::string& text) const { message("warning: " + text); }

  bool on_terminal() const { return out_ != nullptr && status_->on_terminal(); }
  // A line that the next one replaces on a terminal.
  void status(const std::string& text) const {
    if (out_ != nullptr) status_->draw(text);
  }

 private:
  std::FILE* out_ = nullptr;
  std::shared_ptr<StatusLine> status_;
};

}  // namespace dtopp

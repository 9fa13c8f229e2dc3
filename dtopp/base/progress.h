// Progress for people: how numbers are written on the console, and a bar for work whose end is known.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

namespace dtopp {

// Seconds as the two units that matter: "0.4s", "12s", "2m10s", "3h05m", "4d07h". What is not a length of
// time (negative, NaN, infinite) is "?".
std::string format_duration(double seconds);
// Three significant digits with a decimal prefix: "87", "5.1k", "132k", "1.24M", "13.6G".
std::string format_count(double count);
// Decimal units: "512 B", "1.2 GB".
std::string format_bytes(double bytes);

// "done" of "total" after some seconds, with the rate and the time left. Zero total: not known. `start` was
// done before the clock began and does not enter the rate.
//   tokenize   43%  1.20M/2.80M tok  310k tok/s  5.2s left
std::string progress_line(const std::string& label, const std::string& unit, uint64_t done, uint64_t total,
                          double seconds, uint64_t start = 0);

// A line that is drawn again and again: in place on a terminal; elsewhere each is a line of its own.
class StatusLine {
 public:
  explicit StatusLine(std::FILE* stream);

  bool on_terminal() const { return on_terminal_; }
  void draw(const std::string& text);
  // Room for another line on a terminal.
  void clear();
  // What was drawn last stays on the terminal, ended by a newline.
  void end();

 private:
  std::FILE* stream_;
  bool on_terminal_;
  size_t width_ = 0;  // on the terminal; 0: nothing is
};

// Draws progress_line on standard error: in place on a terminal, a few times a second; elsewhere as a plain
// line now and then, so that a log stays readable. Not for several threads at once.
class ProgressBar {
 public:
  // `unit` names what is counted ("tok", "docs"); "B" counts bytes.
  ProgressBar(std::string label, std::string unit, uint64_t total = 0, std::FILE* stream = stderr);
  ~ProgressBar();  // finishes
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void set_total(uint64_t total) { total_ = total; }
  // What a resumed job finds done; it does not enter the rate.
  void set_start(uint64_t done) { start_ = done_ = done; }
  // More to say at the line's end, such as a second rate.
  void set_note(std::string note) { note_ = std::move(note); }
  // `done` in all, not since the last call.
  void update(uint64_t done);
  // The last state stays on the screen, ended by a newline. Does nothing the second time.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(Clock::time_point now);

  std::string label_;
  std::string unit_;
  std::string note_;
  uint64_t total_;
  StatusLine line_;
  uint64_t start_ = 0;
  uint64_t done_ = 0;
  Clock::time_point began_;
  Clock::time_point next_draw_;
  bool drawn_ = false;
  bool finished_ = false;
};

}  // namespace dtopp

#include "dtopp/base/progress.h"

#include <cmath>

#include <sys/ioctl.h>
#include <unistd.h>

#include "dtopp/base/format.h"

namespace dtopp {
namespace {

constexpr auto kRedrawOnTerminal = std::chrono::milliseconds(200);
constexpr auto kLineElsewhere = std::chrono::seconds(30);

// The longest text that a line of the terminal holds: a full line would begin the next one.
size_t room_of(std::FILE* terminal) {
  winsize size{};
  const bool is_known = ::ioctl(::fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return is_known ? size.ws_col - size_t{1} : std::string::npos;
}

std::string amount(double value, const std::string& unit) {
  return unit == "B" ? format_bytes(value) : format_count(value) + " " + unit;
}

}  // namespace

std::string progress_line(const std::string& label, const std::string& unit, uint64_t done, uint64_t total,
                          double seconds, uint64_t start) {
  const auto now = static_cast<double>(done);
  const double rate = seconds > 0 ? static_cast<double>(done - std::min(start, done)) / seconds : 0;
  std::string line = label + "  ";
  if (total > 0) {
    const double share = std::min(1.0, now / static_cast<double>(total));
    line += format("%3.0f%%  ", std::floor(share * 100));  // rounded down: 100 % only at the end
    const auto all = static_cast<double>(total);
    line += (unit == "B" ? format_bytes(now) : format_count(now)) + "/" + amount(all, unit);
  } else {
    line += amount(now, unit);
  }
  line += "  " + amount(rate, unit) + "/s";
  if (done >= total || rate == 0) return line + "  " + format_duration(seconds);
  return line + "  " + format_duration((static_cast<double>(total) - now) / rate) + " left";
}

StatusLine::StatusLine(std::FILE* stream) : stream_(stream), on_terminal_(::isatty(::fileno(stream)) == 1) {}

void StatusLine::draw(const std::string& text) {
  if (on_terminal_) {
    const std::string shown = text.substr(0, room_of(stream_));
    const size_t leftover = width_ > shown.size() ? width_ - shown.size() : 0;
    std::fprintf(stream_, "\r%s%*s", shown.c_str(), static_cast<int>(leftover), "");
    width_ = shown.size();
  } else {
    std::fprintf(stream_, "%s\n", text.c_str());
  }
  std::fflush(stream_);
}

void StatusLine::clear() {
  if (width_ == 0) return;
  std::fprintf(stream_, "\r%*s\r", static_cast<int>(width_), "");
  width_ = 0;
}

void StatusLine::end() {
  if (width_ == 0) return;
  std::fputs("\n", stream_);
  width_ = 0;
  std::fflush(stream_);
}

ProgressBar::ProgressBar(std::string label, std::string unit, uint64_t total, std::FILE* stream)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      total_(total),
      line_(stream),
      began_(Clock::now()),
      next_draw_(began_ + interval()) {}

ProgressBar::Clock::duration ProgressBar::interval() const {
  return line_.on_terminal() ? Clock::duration(kRedrawOnTerminal) : Clock::duration(kLineElsewhere);
}

void ProgressBar::update(uint64_t done) {
  done_ = done;
  const auto now = Clock::now();
  if (now >= next_draw_ && !finished_) draw(now);
}

void ProgressBar::draw(Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - began_).count();
  std::string line = progress_line(label_, unit_, done_, total_, seconds, start_);
  if (!note_.empty()) line += "  " + note_;
  line_.draw(line);
  next_draw_ = now + interval();
  drawn_ = true;
}

void ProgressBar::finish() {
  if (std::exchange(finished_, true)) return;
  if (done_ > start_ || drawn_) draw(Clock::now());
  line_.end();
}

}  // namespace dtopp

#include "cli/console_watch.h"

#include "cli/standard_streams.h"

namespace dtopp::cli {

void ConsoleWatch::begin(const std::string& label, const char* unit, uint64_t total) {
  if (shows_) bar_.emplace(label, unit, total);
}

void ConsoleWatch::update(uint64_t done) {
  if (bar_) bar_->update(done);
}

void ConsoleWatch::message(const std::string& text) {
  if (shows_) print_message(text);
}

}  // namespace dtopp::cli

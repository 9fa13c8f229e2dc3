// Prints the lines of a run, or nothing on ranks that are to be silent.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "dtopp/base/progress.h"

namespace dtopp {

// Copies print to the same console.
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

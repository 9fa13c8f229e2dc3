// Prints the lines of a run, or nothing on ranks that are to be silent.
#pragma once

#include <cstdio>
#include <string>

namespace dtopp {

class ConsoleLog {
 public:
  ConsoleLog() = default;  // prints nothing
  explicit ConsoleLog(std::FILE* out) : out_(out) {}

  void line(const std::string& text) const {
    if (out_ != nullptr) std::fprintf(out_, "%s\n", text.c_str());
  }
  void message(const std::string& text) const { line("dtopp: " + text); }
  void warning(const std::string& text) const { message("warning: " + text); }

 private:
  std::FILE* out_ = nullptr;
};

}  // namespace dtopp

// Collects the lines of a ConsoleLog.
#pragma once

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "dtopp/base/progress.h"

namespace dtopp {

class LogText {
 public:
  LogText() = default;
  ~LogText() {
    std::fclose(stream_);
    std::free(text_);
  }
  LogText(const LogText&) = delete;
  LogText& operator=(const LogText&) = delete;

  ConsoleLog log() const { return ConsoleLog(stream_); }
  std::vector<std::string> lines() const {
    std::fflush(stream_);
    std::istringstream text(std::string(text_, size_));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* stream_ = ::open_memstream(&text_, &size_);
};

}  // namespace dtopp

// Ends a text before the first of some stop strings, which may span several tokens.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtopp::serve {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Adds text and returns what can be shown: all before a stop string, or before a part that may become one.
  std::string add(std::string_view text);
  // Returns the text that add() holds back, at the end of all text.
  std::string rest() { return found_ ? std::string() : std::exchange(held_, {}); }
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // no stop string, but perhaps the beginning of one
  bool found_ = false;
};

}  // namespace dtopp::serve

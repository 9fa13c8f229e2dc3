#include "dtopp/serve/stop_strings.h"

#include <algorithm>

namespace dtopp::serve {

std::string StopStrings::add(std::string_view text) {
  if (found_) return {};
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    found_ = true;
    return held_.substr(0, first);
  }
  size_t shown = held_.size();
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > 0; --length) {
      if (!held_.ends_with(std::string_view(stop).substr(0, length))) continue;
      shown = std::min(shown, held_.size() - length);
      break;
    }
  }
  std::string result = held_.substr(0, shown);
  held_.erase(0, shown);
  return result;
}

}  // namespace dtopp::serve

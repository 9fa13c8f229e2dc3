// Shortens a transport's exception to one line for error messages.
//
// Collective:    no
#pragma once

#include <exception>
#include <string>

#include "dtopp/ops/core/torch.h"

namespace dtopp::distributed {

// The first line of the message, without the source location that Gloo puts in front.
inline std::string reason_of(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = from_torch ? from_torch->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  const size_t place_end = text.starts_with('[') ? text.find("] ") : std::string::npos;
  return place_end == std::string::npos ? text : text.substr(place_end + 2);
}

}  // namespace dtopp::distributed

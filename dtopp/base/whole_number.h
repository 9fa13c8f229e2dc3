// Reads a whole number from text that another program wrote.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dtopp {

// Returns nullopt if the text is anything but the digits of a number that fits.
inline std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.front() == '-') return std::nullopt;
  return value;
}

}  // namespace dtopp

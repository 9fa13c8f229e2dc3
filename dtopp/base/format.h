// Formats numbers, durations, counts and bytes as text.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp {

// Reads a whole number from text that another program wrote.

// Returns nullopt if the text is anything but the digits of a number that fits.
inline std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || text.front() == '-') return std::nullopt;
  return value;
}

// Converts enumerations to the names that users write in configurations, and back. Each enumeration declares
// its names next to itself:
//
//   constexpr auto enum_names(Enum) -> std::array<std::pair<Enum, std::string_view>, n>

template <class Enum>
std::string enum_name(Enum value) {
  for (const auto& [candidate, name] : enum_names(value))
    if (candidate == value) return std::string(name);
  throw std::invalid_argument("an enumeration has a value without a name");
}

// nullopt if no value has that name.
template <class Enum>
std::optional<Enum> enum_named(std::string_view text) {
  for (const auto& [value, name] : enum_names(Enum{}))
    if (text == name) return value;
  return std::nullopt;
}

// Returns the text that printf would print.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

// The texts with `separator` between them.
std::string joined(const std::vector<std::string>& texts, std::string_view separator);

// Removes the sign of NaN, which printf shows as "-nan".
double without_nan_sign(double value);

// Seconds as one or two units: "0.4s", "12s", "2m10s", "3h05m", "4d07h". "?" for a negative, NaN or infinite
// value.
std::string format_duration(double seconds);
// Three significant digits with a decimal prefix: "87", "5.1k", "132k", "1.24M", "13.6G".
std::string format_count(double count);
// Decimal units: "512 B", "1.2 GB".
std::string format_bytes(double bytes);

}  // namespace dtopp

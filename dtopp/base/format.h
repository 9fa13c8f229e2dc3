// Formats numbers, durations, counts and bytes as text.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtopp {

// The whole number in text that another program wrote; nullopt if it is anything but the digits of one that
// fits.
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
//   constexpr auto enum_names(Enum) { return std::to_array<std::string_view>({"first", "second"}); }
//
// The names are in the order of the values, which count from 0.

template <class Enum>
std::string enum_name(Enum value) {
  return std::string(enum_names(value).at(static_cast<size_t>(value)));
}

// nullopt if no value has that name.
template <class Enum>
std::optional<Enum> enum_named(std::string_view text) {
  const auto names = enum_names(Enum{});
  const auto found = std::ranges::find(names, text);
  return found == names.end() ? std::nullopt : std::optional(static_cast<Enum>(found - names.begin()));
}

// Returns the text that printf would print. %ld prints an int64_t: dtopp runs on 64-bit Linux alone.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

// The texts with `separator` between them.
std::string joined(const std::vector<std::string>& texts, std::string_view separator);

// Whether names of files may hold the character: letters, digits, _, - and .
bool is_plain(char c);

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

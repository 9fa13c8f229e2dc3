// Formats numbers, durations, counts and bytes as text.
#pragma once

#include <string>

namespace dtopp {

// Returns the text that printf would print.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

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

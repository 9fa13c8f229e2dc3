#include "dtopp/base/format.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <utility>

namespace dtopp {
namespace {

std::string two_units(double seconds, int64_t unit, char name, int64_t part, char part_name) {
  const auto parts = std::lround(seconds / static_cast<double>(part));
  return format("%ld%c%02ld%c", parts * part / unit, name, parts * part % unit / part, part_name);
}

// Scales the value to [1, 1000) and returns its prefix, such that rounding never prints 1000.
std::pair<double, const char*> scaled(double value) {
  constexpr std::array<const char*, 7> kPrefixes = {"", "k", "M", "G", "T", "P", "E"};
  size_t power = 0;
  while (std::abs(value) >= 999.5 && power + 1 < kPrefixes.size()) {
    value /= 1000;
    ++power;
  }
  return {value, kPrefixes[power]};
}

}  // namespace

std::string format(const char* pattern, ...) {
  std::va_list values, again;
  va_start(values, pattern);
  va_copy(again, values);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, pattern, values)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  va_end(values);
  return text;
}

std::string joined(const std::vector<std::string>& texts, std::string_view separator) {
  std::string all;
  for (const std::string& text : texts) all.append(&text == texts.data() ? "" : separator).append(text);
  return all;
}

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '.';
}

double without_nan_sign(double value) { return std::isnan(value) ? std::abs(value) : value; }

std::string format_duration(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 3600;
  constexpr double kDay = 86400;
  if (!(seconds >= 0) || seconds > 1e12) return "?";
  if (seconds < 9.95) return format("%.1fs", seconds);
  if (seconds < kMinute - 0.5) return format("%.0fs", seconds);
  if (seconds < kHour - 0.5) return two_units(seconds, 60, 'm', 1, 's');
  if (seconds < kDay - kMinute / 2) return two_units(seconds, 3600, 'h', 60, 'm');
  return two_units(seconds, 86400, 'd', 3600, 'h');
}

std::string format_count(double count) {
  if (!std::isfinite(count)) return "?";
  const auto [value, prefix] = scaled(count);
  if (*prefix == 0) return value == std::floor(value) ? format("%.0f", value) : format("%.3g", value);
  if (std::abs(value) < 9.995) return format("%.2f", value) + prefix;
  return format(std::abs(value) < 99.95 ? "%.1f" : "%.0f", value) + prefix;
}

std::string format_bytes(double bytes) {
  if (!std::isfinite(bytes)) return "?";
  const auto [value, prefix] = scaled(bytes);
  if (*prefix == 0) return format("%.0f B", value);
  return format(std::abs(value) < 99.95 ? "%.1f " : "%.0f ", value) + prefix + "B";
}

}  // namespace dtopp

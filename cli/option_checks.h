// Checks the values of options. CLI11's own checks accept "nan" and print bounds with 309 digits.
#pragma once

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "dtopp/base/enum_name.h"

namespace dtopp::cli {

// Requires a finite number for which holds(number) is true. `bounds` describes those in an error, as in "be
// greater than 0", and `name` in the help.
template <class Holds>
CLI::Validator number_that(const std::string& bounds, const std::string& name, const Holds& holds) {
  return {[=](const std::string& text) -> std::string {
            double number = 0;
            if (!CLI::detail::lexical_cast(text, number) || !std::isfinite(number))
              return text + " is not a finite number";
            return holds(number) ? "" : "must " + bounds + ", is " + text;
          },
          name};
}

inline CLI::Validator finite_number() {
  return number_that("", "", [](double) { return true; });
}
inline CLI::Validator positive() {
  return number_that("be greater than 0", "POSITIVE", [](double number) { return number > 0; });
}
inline CLI::Validator not_negative() {
  return number_that("be at least 0", "NONNEGATIVE", [](double number) { return number >= 0; });
}
inline CLI::Validator between(int64_t least, int64_t most) {
  const std::string bounds = std::to_string(least) + " to " + std::to_string(most);
  return number_that("be from " + bounds, bounds, [=](double number) {
    return number >= static_cast<double>(least) && number <= static_cast<double>(most);
  });
}

inline CLI::Validator not_empty() {
  return {[](const std::string& text) { return text.empty() ? "is empty" : ""; }, ""};
}

// For transform(): accepts a name of the enumeration and replaces it by its value.
template <class Enum>
CLI::Validator choice() {
  std::set<std::string_view> sorted;
  for (const auto& [value, name] : enum_names(Enum())) sorted.insert(name);
  std::string names;
  for (const std::string_view name : sorted) names.append(names.empty() ? "" : "|").append(name);
  return {[names](std::string& text) -> std::string {
            const auto value = enum_named<Enum>(text);
            if (!value) return text + " is not one of " + names;
            text = std::to_string(static_cast<int64_t>(*value));
            return "";
          },
          names};
}

}  // namespace dtopp::cli

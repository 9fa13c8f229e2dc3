// Checks the values of options. CLI11's own checks accept "nan" and print bounds with 309 digits; its
// integers wrap around beyond their range.
#pragma once

#include <cmath>
#include <limits>
#include <system_error>

#include <CLI/CLI.hpp>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"

namespace dtopp::cli {

// Requires a finite number from `least` to `most`, and a whole one if Number is an integer. `bounds`
// describes them in an error, as in "greater than 0", and `name` in the help.
template <class Number>
CLI::Validator number_from(Number least, Number most, const std::string& bounds, const std::string& name) {
  return {[=](const std::string& text) -> std::string {
            Number number = 0;
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, number);
            const bool is_number = stop == end && error == std::errc();
            if constexpr (std::integral<Number>) {
              if (!is_number)
                return "must be a whole number from " + std::to_string(least) + " to " +
                       std::to_string(most) + ", is " + text;
            } else {
              if (!is_number || !std::isfinite(number)) return text + " is not a finite number";
            }
            return number >= least && number <= most ? "" : "must be " + bounds + ", is " + text;
          },
          name};
}

template <class Number>
CLI::Validator positive() {
  using Limits = std::numeric_limits<Number>;
  const Number least = std::integral<Number> ? 1 : Limits::denorm_min();
  return number_from<Number>(least, Limits::max(), "greater than 0", "POSITIVE");
}
template <class Number>
CLI::Validator not_negative() {
  return number_from<Number>(0, std::numeric_limits<Number>::max(), "at least 0", "NONNEGATIVE");
}
template <class Number>
CLI::Validator between(Number least, Number most) {
  const std::string bounds = CLI::detail::to_string(least) + " to " + CLI::detail::to_string(most);
  return number_from<Number>(least, most, "from " + bounds, bounds);
}
inline CLI::Validator finite_number() {
  return number_from(std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max(), "finite", "");
}

inline CLI::Validator not_empty() {
  return {[](const std::string& text) { return text.empty() ? "is empty" : ""; }, ""};
}

// Requires that the folder of a file to write exists, before any work is lost.
inline CLI::Validator in_existing_folder() {
  return {[](std::string& file) -> std::string {
            const fs::path folder = fs::path(file).parent_path();
            if (folder.empty() || path_kind(folder) == PathKind::kDirectory) return "";
            return file + ": there is no folder " + folder.string() + "; create it";
          },
          ""};
}

template <class Value>
CLI::Option* add_checked(CLI::App& command, const std::string& name, Value& value, const std::string& text,
                         const CLI::Validator& check) {
  return command.add_option(name, value, text)->check(check);
}

// Adds an option whose default --help shows.
template <class Number>
CLI::Option* add_number(CLI::App& command, const std::string& name, Number& value, const std::string& text,
                        const CLI::Validator& check) {
  return add_checked(command, name, value, text, check)->capture_default_str();
}

// For transform(): accepts a name of the enumeration and replaces it by its value.
template <class Enum>
CLI::Validator choice() {
  auto sorted = enum_names(Enum());
  std::ranges::sort(sorted);
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

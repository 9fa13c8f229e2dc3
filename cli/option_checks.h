// Provides option checks that CLI11 lacks.
#pragma once

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "dtopp/base/enum_name.h"

namespace dtopp::cli {

// Requires a finite number. CLI11's range checks accept "nan", because all comparisons with it are false.
inline CLI::Validator finite_number() {
  return {[](const std::string& text) -> std::string {
            double number = 0;
            const bool is_number = CLI::detail::lexical_cast(text, number);
            return is_number && std::isfinite(number) ? "" : text + " is not a finite number";
          },
          ""};
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

// Checks of options that CLI11 has not.
#pragma once

#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "dtopp/base/enum_name.h"

namespace dtopp::cli {

// CLI11's bounds, as they compare, let "nan" pass.
inline CLI::Validator finite_number() {
  return {[](const std::string& text) -> std::string {
            double number = 0;
            const bool is_number = CLI::detail::lexical_cast(text, number);
            return is_number && std::isfinite(number) ? "" : text + " is not a finite number";
          },
          ""};
}

// For transform(): one of the enumeration's names, which becomes its value.
template <class Enum>
CLI::Validator choice() {
  std::set<std::string_view> sorted;
  for (const auto& [value, name] : enum_names(Enum())) sorted.insert(name);
  std::string names;
  for (const std::string_view name : sorted) names.append(names.empty() ? "" : "|").append(name);
  return {[names](std::string& text) -> std::string {
            const auto value = enum_named<Enum>(text);
            if (!value) return text + " is none of " + names;
            text = std::to_string(static_cast<int64_t>(*value));
            return "";
          },
          names};
}

}  // namespace dtopp::cli

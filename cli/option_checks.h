// Checks of options that CLI11 has not.
#pragma once

#include <cmath>
#include <map>
#include <string>

#include <CLI/CLI.hpp>

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

// For transform(): one of the names, which becomes its value.
template <class Enum>
CLI::Validator choice(const std::map<std::string, Enum>& values) {
  std::string names;
  for (const auto& [name, value] : values) names += (names.empty() ? "" : "|") + name;
  return {[values, names](std::string& text) -> std::string {
            const auto found = values.find(text);
            if (found == values.end()) return text + " is none of " + names;
            text = std::to_string(static_cast<int64_t>(found->second));
            return "";
          },
          names};
}

}  // namespace dtopp::cli

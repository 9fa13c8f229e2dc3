// Converts enumerations to the names that users write in configurations, and back. Each enumeration declares
// its names next to itself:
//
//   constexpr auto enum_names(Enum) -> std::array<std::pair<Enum, std::string_view>, n>
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dtopp {

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

}  // namespace dtopp

#include "dtopp/checkpoint/training_state.h"

#include <array>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"

namespace dtopp {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<const char*, int64_t TrainingState::*>, 7> kIntegers = {{
    {"step", &TrainingState::step},
    {"tokens", &TrainingState::tokens},
    {"sample_position", &TrainingState::sample_position},
    {"seed", &TrainingState::seed},
    {"skipped_steps", &TrainingState::skipped_steps},
    {"consecutive_skips", &TrainingState::consecutive_skips},
    {"last_validation_step", &TrainingState::last_validation_step},
}};

constexpr std::array<std::pair<const char*, std::vector<double> TrainingState::*>, 2> kDoubles = {{
    {"threshold", &TrainingState::threshold},
    {"error_sum", &TrainingState::error_sum},
}};

[[noreturn]] void fail(const std::string& what, const std::string& key, const std::string& cause) {
  throw DataError(what + ": " + key + ": " + cause);
}

std::vector<double> parse_doubles(const json& value, const std::string& what, const std::string& key) {
  std::vector<double> numbers;
  for (const auto& element : value.is_array() ? value : json::array({value})) {
    if (!element.is_number()) fail(what, key, "not a number or a list of numbers");
    numbers.push_back(element.get<double>());
  }
  if (numbers.empty()) fail(what, key, "an empty list");
  return numbers;
}

}  // namespace

std::string format_training_state(const TrainingState& state) {
  nlohmann::ordered_json object;
  for (const auto& [key, member] : kIntegers) object[key] = state.*member;
  for (const auto& [key, member] : kDoubles) {
    const auto& values = state.*member;
    for (const double value : values)
      if (!std::isfinite(value)) fail("state.json", key, "not finite");
    if (values.size() > 1 && !state.per_layer) fail("state.json", key, "several values but not per layer");
    if (values.empty()) continue;
    if (state.per_layer)
      object[key] = values;
    else
      object[key] = values.front();
  }
  return object.dump(2) + "\n";
}

TrainingState parse_training_state(const std::string& text, const std::string& what) {
  const auto object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) throw DataError(what + ": not a JSON object");
  TrainingState state;
  for (const auto& [key, member] : kIntegers) {
    const auto found = object.find(key);
    if (found == object.end()) fail(what, key, "missing");
    // An unsigned value beyond int64 would wrap around.
    if (!found->is_number_integer() || (found->is_number_unsigned() && found->get<uint64_t>() > INT64_MAX))
      fail(what, key, "not an integer");
    state.*member = found->get<int64_t>();
    const bool may_be_negative =
        member == &TrainingState::seed || member == &TrainingState::last_validation_step;
    if (state.*member < 0 && !may_be_negative) fail(what, key, "negative");
  }
  for (const auto& [key, member] : kDoubles) {
    const auto found = object.find(key);
    if (found == object.end()) continue;
    state.*member = parse_doubles(*found, what, key);
    state.per_layer = found->is_array();
  }
  if (!state.error_sum.empty() && state.threshold.size() != state.error_sum.size())
    fail(what, "error_sum", "its length differs from threshold's");
  return state;
}

}  // namespace dtopp

#include "dtopp/checkpoint/training_state.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/json.h"
#include "dtopp/base/json_fields.h"

namespace dtopp {
namespace {

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

[[noreturn]] void refuse_to_write(const std::string& key, const std::string& cause) {
  throw DataError("state.json: " + key + ": " + cause);
}

}  // namespace

std::string format_training_state(const TrainingState& state) {
  nlohmann::ordered_json object;
  for (const auto& [key, member] : kIntegers) object[key] = state.*member;
  for (const auto& [key, member] : kDoubles) {
    const auto& values = state.*member;
    for (const double value : values)
      if (!std::isfinite(value)) refuse_to_write(key, "not finite");
    if (values.size() > 1 && !state.per_layer) refuse_to_write(key, "several values but not per layer");
    if (values.empty()) continue;
    if (state.per_layer)
      object[key] = values;
    else
      object[key] = values.front();
  }
  if (!state.tokens_per_expert.empty()) object["expert_counts"] = state.tokens_per_expert;
  return dump_json(object, 2) + "\n";
}

TrainingState parse_training_state(const std::string& text, const std::string& what) {
  const JsonFields fields(text, what);
  TrainingState state;
  for (const auto& [key, member] : kIntegers) {
    const bool may_be_negative =
        member == &TrainingState::seed || member == &TrainingState::last_validation_step;
    state.*member = fields.integer(key, may_be_negative ? std::numeric_limits<int64_t>::min() : 0);
  }
  for (const auto& [key, member] : kDoubles) {
    if (!fields.has(key)) continue;
    state.*member = fields.numbers(key);
    state.per_layer = fields.is_array(key);
  }
  if (fields.has("expert_counts")) {
    for (const double count : fields.numbers("expert_counts")) {
      if (!(count >= 0 && count < 0x1p53)) fields.fail("expert_counts", "not a count");
      state.tokens_per_expert.push_back(static_cast<int64_t>(count));
    }
  }
  if (!state.error_sum.empty() && state.threshold.size() != state.error_sum.size())
    fields.fail("error_sum", "its length differs from threshold's");
  return state;
}

}  // namespace dtopp

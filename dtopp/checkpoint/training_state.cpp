#include "dtopp/checkpoint/training_state.h"

#include <array>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/json.h"
#include "dtopp/base/json_fields.h"

namespace dtopp::checkpoint {
namespace {

constexpr std::array<std::pair<const char*, int64_t TrainingState::*>, 8> kIntegers = {{
    {"step", &TrainingState::step},
    {"tokens", &TrainingState::tokens},
    {"assignments", &TrainingState::assignments},
    {"sample_position", &TrainingState::sample_position},
    {"seed", &TrainingState::seed},
    {"skipped_steps", &TrainingState::skipped_steps},
    {"consecutive_skips", &TrainingState::consecutive_skips},
    {"last_validation_step", &TrainingState::last_validation_step},
}};
constexpr char kTrainingData[] = "training_data";

}  // namespace

std::string format_training_state(const TrainingState& state) {
  nlohmann::ordered_json object;
  for (const auto& [key, member] : kIntegers) object[key] = state.*member;
  object[kTrainingData] = state.training_data;
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
  if (fields.has(kTrainingData)) state.training_data = fields.texts(kTrainingData);
  return state;
}

}  // namespace dtopp::checkpoint

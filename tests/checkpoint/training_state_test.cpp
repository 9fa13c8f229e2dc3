#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/checkpoint/checkpoint.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::checkpoint {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TrainingState round_trip(const TrainingState& state) {
  return parse_training_state(format_training_state(state), "state.json");
}

json valid() {
  return {{"step", 1}, {"tokens", 2},        {"assignments", 6},       {"sample_position", 3},
          {"seed", 4}, {"skipped_steps", 0}, {"consecutive_skips", 0}, {"last_validation_step", -1}};
}

TEST(TrainingState, integers_come_back_over_their_whole_range) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const TrainingState state = {.step = kMost,
                               .tokens = kMost,
                               .assignments = kMost,
                               .sample_position = (int64_t{1} << 53) + 1,
                               .seed = std::numeric_limits<int64_t>::min(),
                               .skipped_steps = 5,
                               .consecutive_skips = 4,
                               .last_validation_step = 3,
                               .training_data = {"first", "second"}};
  EXPECT_EQ(round_trip(state), state);
}

TEST(TrainingState, names_the_file_and_the_key_that_is_wrong) {
  const auto refused = [](const json& object) {
    return error_of<DataError>([&] { parse_training_state(object.dump(), "x/state.json"); });
  };
  EXPECT_NO_THROW(parse_training_state(valid().dump(), "x/state.json"));
  const json all = valid();
  for (const auto& [key, value] : all.items()) {
    auto object = valid();
    object.erase(key);
    EXPECT_EQ(refused(object), "x/state.json: " + key + ": is missing");
    object[key] = nullptr;
    EXPECT_EQ(refused(object), "x/state.json: " + key + ": is missing");
    for (const json& other : {json("1"), json(1.5), json(uint64_t{1} << 63)}) {
      object[key] = other;
      EXPECT_THAT(refused(object), StartsWith("x/state.json: " + key + ": must be an integer"));
    }
  }
  auto object = valid();
  object["training_data"] = json::array({"hash", 1});
  EXPECT_THAT(refused(object), HasSubstr("training_data: must be an array of strings"));
  object = valid();
  object["step"] = -1;
  EXPECT_THAT(refused(object), HasSubstr("step: must be an integer of at least 0"));
  EXPECT_THAT(refused(json::array()), HasSubstr("must be a JSON object"));
  EXPECT_THAT(error_of<DataError>([] { parse_training_state("{\"step\": ", "x"); }),
              HasSubstr("invalid JSON"));
}

}  // namespace
}  // namespace dtopp::checkpoint

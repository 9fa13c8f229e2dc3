#include "dtopp/checkpoint/training_state.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "tests/base/scratch_directory.h"

namespace dtopp {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TrainingState round_trip(const TrainingState& state) {
  return parse_training_state(format_training_state(state), "state.json");
}

json valid() {
  return {{"step", 1},
          {"tokens", 2},
          {"sample_position", 3},
          {"seed", 4},
          {"skipped_steps", 0},
          {"consecutive_skips", 0},
          {"last_validation_step", -1}};
}

TEST(TrainingState, doubles_come_back_to_the_last_bit) {
  std::mt19937_64 generator(1);
  std::vector<double> values = {0.1,  1.0 / 3.0, -0.0, 5e-324, std::numeric_limits<double>::max(),
                                1e-6, 1 - 1e-6};
  while (values.size() < 2000) {
    const auto value = std::bit_cast<double>(generator());
    if (std::isfinite(value)) values.push_back(value);
  }
  const TrainingState state = {.threshold = values, .error_sum = values, .per_layer = true};
  const auto read = round_trip(state);
  ASSERT_EQ(read.threshold.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(read.threshold[i]), std::bit_cast<uint64_t>(values[i]));
    EXPECT_EQ(std::bit_cast<uint64_t>(read.error_sum[i]), std::bit_cast<uint64_t>(values[i]));
  }
}

TEST(TrainingState, integers_come_back_over_their_whole_range) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const TrainingState state = {.step = kMost,
                               .tokens = kMost,
                               .sample_position = (int64_t{1} << 53) + 1,
                               .seed = std::numeric_limits<int64_t>::min(),
                               .threshold = {},
                               .error_sum = {},
                               .skipped_steps = 5,
                               .consecutive_skips = 4,
                               .last_validation_step = 3,
                               .tokens_per_expert = {0, 5, int64_t{1} << 50}};
  EXPECT_EQ(round_trip(state), state);
}

// docs/files.md: a number for the global scope, one number per layer in a list, absent without a controller.
TEST(TrainingState, has_the_promised_shape) {
  TrainingState state = {.step = 7, .threshold = {0.25}, .error_sum = {-1.5}};
  auto object = json::parse(format_training_state(state));
  EXPECT_EQ(object["step"], 7);
  EXPECT_EQ(object["threshold"], 0.25);
  EXPECT_EQ(object["error_sum"], -1.5);
  state.per_layer = true;
  object = json::parse(format_training_state(state));
  EXPECT_EQ(object["threshold"], json::array({0.25}));
  EXPECT_EQ(round_trip(state), state);
  state = {};
  object = json::parse(format_training_state(state));
  EXPECT_FALSE(object.contains("threshold") || object.contains("error_sum"));
  EXPECT_EQ(round_trip(state), state);
}

TEST(TrainingState, refuses_to_write_what_could_not_be_read) {
  const auto refused = [](const TrainingState& state) {
    return error_of<DataError>([&] { format_training_state(state); });
  };
  EXPECT_THAT(refused({.threshold = {std::nan("")}, .error_sum = {0}}), HasSubstr("threshold: not finite"));
  EXPECT_THAT(refused({.threshold = {0.5}, .error_sum = {INFINITY}}), HasSubstr("error_sum: not finite"));
  EXPECT_THAT(refused({.threshold = {0.5, 0.5}, .error_sum = {0, 0}}), HasSubstr("several values"));
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
    for (const json& other : {json("1"), json(1.5), json(nullptr), json(uint64_t{1} << 63)}) {
      object[key] = other;
      EXPECT_THAT(refused(object), StartsWith("x/state.json: " + key + ": must be an integer"));
    }
  }
  auto object = valid();
  object["step"] = -1;
  EXPECT_THAT(refused(object), HasSubstr("step: must be an integer of at least 0"));
  object = valid();
  for (const json& other : {json("a"), json(nullptr), json::array({"a"}), json::array()}) {
    object["threshold"] = other;
    EXPECT_THAT(refused(object), HasSubstr("x/state.json: threshold: "));
  }
  object["threshold"] = {0.1, 0.2};
  object["error_sum"] = {0.1};
  EXPECT_THAT(refused(object), HasSubstr("error_sum: its length"));
  EXPECT_THAT(refused(json::array()), HasSubstr("must be a JSON object"));
  EXPECT_THAT(error_of<DataError>([] { parse_training_state("{\"step\": ", "x"); }),
              HasSubstr("invalid JSON"));
}

}  // namespace
}  // namespace dtopp

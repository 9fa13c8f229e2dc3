#include "dtopp/base/json.h"

#include <bit>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/base/scratch_directory.h"

namespace dtopp::json_fields_test {
namespace {

using ::testing::ElementsAre;

constexpr const char* kText = R"({
  "name": "a \"b\"", "words": ["x", ""], "low": -9223372036854775808, "high": 9223372036854775807, "beyond": 9223372036854775808,
  "half": 0.5, "halves": [0.5, 1], "mixed": [0.5, "1"], "none": [], "null": null, "yes": true, "whole": [-1, 2],
  "inner": {"count": 3}, "list": [{"count": 4}, {"count": "5"}]})";

TEST(JsonFields, members_come_with_their_types) {
  const JsonFields fields(kText, "f");
  EXPECT_EQ(fields.text("name"), "a \"b\"");
  EXPECT_THAT(fields.texts("words"), ElementsAre("x", ""));
  EXPECT_EQ(fields.integer("low"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(fields.integer("high"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(fields.count("high"), uint64_t{std::numeric_limits<int64_t>::max()});
  EXPECT_THAT(fields.numbers("half"), ElementsAre(0.5));
  EXPECT_THAT(fields.numbers("halves"), ElementsAre(0.5, 1));
  EXPECT_EQ(fields.object("inner").count("count"), 3U);
  EXPECT_EQ(fields.objects("list").at(0).count("count"), 4U);
  EXPECT_THAT(fields.object("inner").keys(), ElementsAre("count"));
  EXPECT_EQ(fields.number("half", 0, 0.5), 0.5);
  EXPECT_TRUE(fields.get<bool>("yes"));
  EXPECT_THAT(fields.get<std::vector<int64_t>>("whole"), ElementsAre(-1, 2));
}

TEST(JsonFields, a_member_that_is_missing_or_null_has_a_default) {
  const JsonFields fields(kText, "f");
  for (const char* key : {"null", "no"}) {
    EXPECT_FALSE(fields.has(key) || fields.find(key)) << key;
    EXPECT_EQ(fields.get(key, 0.5), 0.5) << key;
    EXPECT_EQ(fields.get<std::string>(key, "a"), "a") << key;
  }
  EXPECT_TRUE(fields.has("yes") && fields.get("yes", false));
}

// A part outlives the object it was taken from.
TEST(JsonFields, parts_keep_the_whole) {
  const JsonFields inner = JsonFields(kText, "f").object("inner");
  EXPECT_EQ(inner.count("count"), 3U);
  EXPECT_EQ(inner.dump(), R"({"count":3})");
}

TEST(JsonFields, every_error_names_place_and_key) {
  const JsonFields fields(kText, "f.json: line 2");
  const auto error = [](const auto& read) { return error_of<DataError>([&] { read(); }); };
  for (const char* key : {"no", "null"})
    EXPECT_EQ(error([&] { fields.text(key); }), "f.json: line 2: " + std::string(key) + ": is missing");
  EXPECT_EQ(error([&] { fields.get<bool>("half"); }), "f.json: line 2: half: must be true or false");
  EXPECT_EQ(error([&] { fields.get("yes", 0.5); }), "f.json: line 2: yes: must be a number");
  EXPECT_EQ(error([&] { fields.number("half", 1, 2); }),
            "f.json: line 2: half: must be a number from 1 to 2");
  EXPECT_EQ(error([&] { fields.get<std::vector<int64_t>>("halves"); }),
            "f.json: line 2: halves: must be an array of integers");
  EXPECT_EQ(error([&] { fields.text("half"); }), "f.json: line 2: half: must be a string");
  EXPECT_EQ(error([&] { fields.texts("halves"); }), "f.json: line 2: halves: must be an array of strings");
  EXPECT_EQ(error([&] { fields.texts("name"); }), "f.json: line 2: name: must be an array of strings");
  EXPECT_EQ(error([&] { fields.object("name"); }), "f.json: line 2: name: must be a JSON object");
  EXPECT_EQ(error([&] { fields.objects("inner"); }), "f.json: line 2: inner: must be an array of objects");
  EXPECT_EQ(error([&] { fields.objects("list").at(1).count("count"); }),
            "f.json: line 2: list[1].count: must be an integer of at least 0");
  for (const char* key : {"half", "beyond", "name", "halves", "yes"})
    EXPECT_EQ(error([&] { fields.integer(key); }),
              "f.json: line 2: " + std::string(key) + ": must be an integer");
  EXPECT_EQ(error([&] { fields.count("low"); }), "f.json: line 2: low: must be an integer of at least 0");
  EXPECT_EQ(error([&] { fields.integer("high", 0, 3); }),
            "f.json: line 2: high: must be an integer from 0 to 3");
  for (const char* key : {"mixed", "none", "name"})
    EXPECT_EQ(
        error([&] { fields.numbers(key); }),
        "f.json: line 2: " + std::string(key) + ": must be a number or a list of numbers, at least one");
}

TEST(JsonFields, an_error_has_the_path_and_the_cause) {
  try {
    JsonFields(kText, "f").objects("list").at(1).count("count");
    FAIL();
  } catch (const FieldError& error) {
    EXPECT_EQ(error.field, "list[1].count");
    EXPECT_EQ(error.cause, "must be an integer of at least 0");
  }
}

TEST(JsonFields, only_one_whole_object_is_read) {
  const auto error = [](const std::string& text) {
    return error_of<DataError>([&] { JsonFields(text, "f"); });
  };
  for (const std::string& text : {std::string(), std::string("{"), std::string("{} {}"),
                                  std::string("{}\0", 3), std::string("{\"a\": \"\xff\"}")})
    EXPECT_EQ(error(text), "f: invalid JSON") << text;
  for (const char* text : {"[]", "3", "null", "\"{}\""}) EXPECT_EQ(error(text), "f: must be a JSON object");
}

// Copying or printing 100,000 levels would overflow the stack.
TEST(Json, nesting_has_a_limit) {
  const auto nested = [](size_t levels) {
    return R"({"a":"\"[[[[","b":)" + std::string(levels - 1, '[') + std::string(levels - 1, ']') + "}";
  };
  EXPECT_EQ(JsonFields(nested(kMaxJsonDepth), "f").dump(), nested(kMaxJsonDepth));
  for (const size_t levels : {size_t{kMaxJsonDepth} + 1, size_t{100'000}})
    EXPECT_EQ(error_of<DataError>([&] { (void)JsonFields(nested(levels), "f").dump(); }),
              "f: JSON nested deeper than 100 levels");
}

TEST(Json, bytes_that_are_no_text_do_not_stop_a_dump) {
  EXPECT_EQ(dump_json({{"a", "\xff"}}), "{\"a\":\"\xef\xbf\xbd\"}");
  EXPECT_EQ(quote_json("\xff\n\u00fc"), "\"\xef\xbf\xbd\\n\u00fc\"");
  EXPECT_EQ(quote_json("\u00fc", /*ascii=*/true), "\"\\u00fc\"");
}

TEST(Json, packing_keeps_every_bit) {
  const std::vector<float> numbers = {0.1F,
                                      -0.0F,
                                      1e-45F,
                                      3.4e38F,
                                      std::numeric_limits<float>::infinity(),
                                      std::numeric_limits<float>::quiet_NaN()};
  const std::string bytes("\xff\0\n", 3);
  const auto unpacked = unpack_json(pack_json(nlohmann::json::array({numbers, bytes})));
  const auto same = unpacked[0].get<std::vector<float>>();
  ASSERT_EQ(same.size(), numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(same[i]), std::bit_cast<uint32_t>(numbers[i])) << numbers[i];
  EXPECT_EQ(unpacked[1].get<std::string>(), bytes);
}

}  // namespace

}  // namespace dtopp::json_fields_test

// Tests the generic machinery on a struct of its own: reading and printing one file.
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "tests/config/machinery.h"

namespace dtopp::config {
namespace {

TEST_F(Machinery, reads_every_type_of_field) {
  const Outer config = read(
      "title: 'a: b'\nflag: true\ncolour: green\ninner: {count: -12, rate: 1e-4, weights: [1, 2.5, -3e2]}\n"
      "words: [x, \"y z\"]\n");
  EXPECT_EQ(config.title, "a: b");
  EXPECT_TRUE(config.flag);
  EXPECT_EQ(config.colour, local::Colour::kGreen);
  EXPECT_EQ(config.inner.count, -12);
  EXPECT_EQ(config.inner.rate, 1e-4);
  EXPECT_EQ(config.inner.weights, (std::vector<double>{1, 2.5, -300}));
  EXPECT_EQ(config.words, (std::vector<std::string>{"x", "y z"}));
}

TEST_F(Machinery, keeps_defaults_of_fields_that_are_not_named) {
  const Outer config = read("inner:\n  rate: 2\nwords:\n  - only\n");
  EXPECT_EQ(config.inner.count, 3);
  EXPECT_EQ(config.inner.rate, 2.0);
  EXPECT_EQ(read("inner:\n").inner.count, 3);
  EXPECT_EQ(read("").inner.count, 3);
  EXPECT_EQ(read("# nothing\n").title, "");
}

TEST_F(Machinery, takes_one_value_for_a_list_of_one) {
  EXPECT_EQ(read("inner: {weights: 8}").inner.weights, std::vector<double>{8.0});
  EXPECT_EQ(read("words: data/train").words, std::vector<std::string>{"data/train"});
}

TEST_F(Machinery, accepts_every_notation_of_a_number) {
  for (const auto& [text, value] :
       std::map<std::string, double>{{"1e-4", 1e-4},
                                     {"1.0e-4", 1e-4},
                                     {"1.0E-4", 1e-4},
                                     {"+2.5", 2.5},
                                     {"-0.0", -0.0},
                                     {".5", 0.5},
                                     {"7", 7.0},
                                     {"1.7976931348623157e308", 1.7976931348623157e308}})
    EXPECT_EQ(read("inner: {rate: " + text + "}").inner.rate, value) << text;
  EXPECT_EQ(read("inner: {count: 9223372036854775807}").inner.count, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(read("inner: {count: -9223372036854775808}").inner.count, std::numeric_limits<int64_t>::min());
}

TEST_F(Machinery, names_the_place_the_key_and_both_types_of_a_wrong_value) {
  const std::map<std::string, std::string> cases = {
      {"inner:\n  count: 8.5\n", "a.yaml:2: inner.count: expected an integer, got '8.5'"},
      {"inner:\n  count: 8.0\n", "a.yaml:2: inner.count: expected an integer, got '8.0'"},
      {"inner:\n  count: 1e3\n", "a.yaml:2: inner.count: expected an integer, got '1e3'"},
      {"inner:\n  count: 0x10\n", "a.yaml:2: inner.count: expected an integer, got '0x10'"},
      {"inner:\n  count: 8 experts\n", "a.yaml:2: inner.count: expected an integer, got '8 experts'"},
      {"inner:\n  count: \"8\"\n", "a.yaml:2: inner.count: expected an integer, got the quoted text '8'"},
      {"inner:\n  count:\n", "a.yaml:2: inner.count: expected an integer, got nothing"},
      {"inner:\n  count:\n    - 1\n", "a.yaml:2: inner.count: expected an integer, got a list"},
      {"inner:\n  count: 9223372036854775808\n",
       "a.yaml:2: inner.count: '9223372036854775808' is out of range for an integer"},
      {"\ninner: {rate: fast}", "a.yaml:2: inner.rate: expected a number, got 'fast'"},
      {"inner: {rate: nan}", "a.yaml:1: inner.rate: expected a finite number, got 'nan'"},
      {"inner: {rate: .nan}", "a.yaml:1: inner.rate: expected a number, got '.nan'"},
      {"inner: {rate: -inf}", "a.yaml:1: inner.rate: expected a finite number, got '-inf'"},
      {"inner: {rate: 1e999}", "a.yaml:1: inner.rate: '1e999' is out of range for a number"},
      {"inner: {rate: +-1}", "a.yaml:1: inner.rate: expected a number, got '+-1'"},
      {"inner: {rate: 1_000}", "a.yaml:1: inner.rate: expected a number, got '1_000'"},
      {"inner: {weights: [1, x]}", "a.yaml:1: inner.weights[1]: expected a number, got 'x'"},
      {"inner: {weights: {a: 1}}",
       "a.yaml:1: inner.weights: expected a number or a list of numbers, got a section"},
      {"inner: 5", "a.yaml:1: inner: expected a section (key: value lines), got '5'"},
      {"inner: [count, 5]", "a.yaml:1: inner: expected a section (key: value lines), got a list"},
      {"title: [a]", "a.yaml:1: title: expected text, got a list"},
      {"title: null", "a.yaml:1: title: expected text, got nothing"},
      {"flag: yes", "a.yaml:1: flag: expected true or false, got 'yes'"},
      {"flag: 1", "a.yaml:1: flag: expected true or false, got '1'"},
      {"colour: blue", "a.yaml:1: colour: expected one of red, green, got 'blue'"},
      {"words:", "a.yaml:1: words: expected a list of texts, got nothing"},
      {"words: [a, [b]]", "a.yaml:1: words[1]: expected text, got a list"},
  };
  for (const auto& [yaml, message] : cases) EXPECT_EQ(error(yaml), message) << yaml;
}

TEST_F(Machinery, suggests_the_nearest_key) {
  EXPECT_EQ(error("inner:\n  coutn: 1"), "a.yaml:2: unknown key 'inner.coutn'; did you mean inner.count?");
  EXPECT_EQ(error("\n\nrate: 1"), "a.yaml:3: unknown key 'rate'; did you mean inner.rate?");
  EXPECT_EQ(error("iner: {count: 1}"), "a.yaml:1: unknown key 'iner'; did you mean inner?");
  EXPECT_EQ(error("color: red"), "a.yaml:1: unknown key 'color'; did you mean colour?");
  EXPECT_EQ(error("inner: {momentum: 1}"),
            "a.yaml:1: unknown key 'inner.momentum'; known keys: inner.count, inner.rate, inner.weights");
  EXPECT_EQ(error("zzz: 1"),
            "a.yaml:1: unknown key 'zzz'; known keys: title, flag, colour, inner, words, paint");
}

// The order of the keys in the file does not matter.
TEST_F(Machinery, knows_the_keys_that_follow_from_a_value) {
  EXPECT_EQ(read("paint: {warmth: 5}").paint.warmth, 5);
  EXPECT_EQ(read("paint: {shadows: 7, colour: green}").paint.shadows, 7);
  EXPECT_EQ(error("paint: {shadows: 7}"),
            "a.yaml:1: unknown key 'paint.shadows'; known keys: paint.colour, paint.warmth");
  EXPECT_EQ(error("paint:\n  warmth: 5\n  colour: green\n"),
            "a.yaml:2: unknown key 'paint.warmth'; known keys: paint.colour, paint.shadows");
  EXPECT_THAT(print_config(read("paint: {colour: green}")),
              ::testing::HasSubstr("paint:\n  colour: green\n  shadows: 2\n"));
}

TEST_F(Machinery, refuses_what_is_not_plain_yaml) {
  EXPECT_EQ(error("flag: true\ntitle: a\nflag: false\n"), "a.yaml:3: duplicate key 'flag'");
  EXPECT_EQ(error("inner:\n  count: 1\n  count: 1\n"), "a.yaml:3: duplicate key 'count'");
  EXPECT_EQ(error("title: &a x\nwords: [*a]\n"),
            "a.yaml:2: aliases (*name) are not allowed; share settings through base: other.yaml");
  EXPECT_EQ(error("title: !!python/object x"),
            "a.yaml:1: tags ('tag:yaml.org,2002:python/object') are not allowed");
  EXPECT_EQ(error("title: a\n---\ntitle: b\n"), "a.yaml: more than one YAML document");
  EXPECT_EQ(error("? [a, b]\n: 1\n"), "a.yaml:1: a key must be a word (is a bracket left open?)");
  EXPECT_EQ(error(std::string("title: a\0b", 10)),
            "a.yaml: not a UTF-8 text file: byte 8 is a control character");
  EXPECT_EQ(error("title: \xff"), "a.yaml: not a UTF-8 text file: byte 7 begins no character");
  EXPECT_THAT(error("title: [a\nflag: true"), ::testing::HasSubstr("not valid YAML: "));
  EXPECT_THAT(error("\n\ninner:\n\tcount: 1"), ::testing::StartsWith("a.yaml:4: not valid YAML: "));
}

TEST_F(Machinery, stops_at_its_limits_quickly) {
  std::string bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n";
  const std::string names = "abcdefghij";
  for (size_t i = 1; i < names.size(); ++i) {
    const char before[] = {'*', names[i - 1], '\0'};
    bomb.append(1, names[i]).append(": &").append(1, names[i]);
    bomb.append(" [").append(before).append(",").append(before).append(",").append(before).append("]\n");
  }
  EXPECT_THAT(error(bomb), ::testing::HasSubstr("aliases"));
  std::string steps;
  for (int i = 0; i < 1000; ++i) steps.append(static_cast<size_t>(i), ' ').append("a:\n");
  for (const std::string& text :
       {std::string(1 << 20, '['), std::string(1 << 20, '{'), std::string(1 << 20, '-'),
        std::string(1 << 20, ' '), std::string(1 << 20, ':'), std::string(1 << 20, '"'),
        std::string(1 << 20, '!'), std::string(1 << 20, '&'), "a" + std::string((1 << 20) - 1, '\n'), steps,
        std::string((1 << 20) + 1, 'a')}) {
    error(text);  // most are errors; none may crash or hang
  }
  std::string dashes;
  for (int i = 0; i < (1 << 19); ++i) dashes += "- ";
  EXPECT_NE(error(dashes), "no error");
  std::string many = "words: [";
  for (int i = 0; i < 200000; ++i) many += "a,";
  EXPECT_EQ(error(many + "]"), "a.yaml:1: more than 100000 values");
  std::string keys;
  for (int i = 0; i < 2000; ++i) keys.append("k").append(std::to_string(i)).append(": 1\n");
  EXPECT_EQ(error(keys), "a.yaml:1001: more than 1000 keys in one section");
}
TEST_F(Machinery, prints_text_that_no_reader_takes_for_something_else) {
  for (const char* text : {"yes", "null", "12", "0.5", "", "~", "a: b", "#x", " a", "tab\there", "\"q\\",
                           "1e-4", "é", "line\nbreak", ".nan", "-", "[a]", "{", "true"}) {
    Outer config;
    config.title = text;
    config.words = {text, text};
    const std::string yaml = print_config(config);
    EXPECT_THAT(yaml, ::testing::StartsWith("title: \"")) << yaml;
    EXPECT_EQ(read(yaml).title, text);
    EXPECT_EQ(read(yaml).words, config.words);
  }
  Outer config;
  config.title = "moe-1.3b/x_y.yaml";
  EXPECT_THAT(print_config(config), ::testing::StartsWith("title: moe-1.3b/x_y.yaml\n"));
}

TEST_F(Machinery, prints_numbers_that_every_yaml_reader_takes_for_numbers) {
  using config::detail::print_value;
  EXPECT_EQ(print_value(1e-4), "1.0e-04");
  EXPECT_EQ(print_value(1e-8), "1.0e-08");
  EXPECT_EQ(print_value(3e-3), "0.003");
  EXPECT_EQ(print_value(8.0), "8.0");
  EXPECT_EQ(print_value(0.1), "0.1");
  EXPECT_EQ(print_value(1e300), "1.0e+300");
  EXPECT_EQ(print_value(std::vector<double>{8.0}), "8.0");
  EXPECT_EQ(print_value(std::vector<double>{0.9, 0.95}), "[0.9, 0.95]");
  EXPECT_EQ(print_value(std::vector<double>{}), "[]");
}

RC_GTEST_PROP(MachineryProperty, printing_and_reading_gives_the_same_values,
              (const std::vector<uint64_t>& bits, int64_t count, const std::string& title, bool flag)) {
  Outer config;
  config.inner.count = count;
  config.flag = flag;
  for (const char c : title) {
    if (static_cast<unsigned char>(c) < 0x80 && c != '\0') config.title += c;
  }
  config.words.assign(3, config.title);
  config.inner.weights.clear();
  for (const uint64_t pattern : bits) {
    // Takes every finite double; all bit patterns are equally likely.
    double value = 0;
    static_assert(sizeof(value) == sizeof(pattern));
    const uint64_t mixed = pattern * 0x9E3779B97F4A7C15ULL;
    std::memcpy(&value, &mixed, sizeof(value));
    if (std::isfinite(value)) config.inner.weights.push_back(value);
  }
  const Outer back = read(print_config(config));
  RC_ASSERT(back.title == config.title);
  RC_ASSERT(back.words == config.words);
  RC_ASSERT(back.inner.count == count);
  RC_ASSERT(back.flag == flag);
  RC_ASSERT(back.inner.weights == config.inner.weights);
}

}  // namespace
}  // namespace dtopp::config

// The generic machinery, on a struct of its own.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "dtopp/base/config.h"
#include "tests/config/temporary_files.h"

namespace local {

enum class Colour { kRed, kGreen };
constexpr auto enum_names(Colour /*type*/) {
  return std::array<std::pair<Colour, std::string_view>, 2>{
      {{Colour::kRed, "red"}, {Colour::kGreen, "green"}}};
}

struct Inner {
  int64_t count = 3;
  double rate = 0.5;
  std::vector<double> weights = {1.0};
};
struct Outer {
  std::string title;
  bool flag = false;
  Colour colour = Colour::kRed;
  Inner inner;
  std::vector<std::string> words;
};

template <class Config, class Visitor>
requires std::same_as<std::remove_const_t<Config>, Inner>
void visit_fields(Config& config, Visitor&& field) {
  field("count", config.count);
  field("rate", config.rate);
  field("weights", config.weights);
}
template <class Config, class Visitor>
requires std::same_as<std::remove_const_t<Config>, Outer>
void visit_fields(Config& config, Visitor&& field) {
  field("title", config.title);
  field("flag", config.flag);
  field("colour", config.colour);
  field("inner", config.inner);
  field("words", config.words);
}

}  // namespace local

namespace dtopp {
namespace {

using local::Outer;

Outer read(const std::string& yaml) {
  Outer config;
  read_config(parse_config(yaml, "a.yaml"), config);
  return config;
}

class Machinery : public TemporaryFiles {
 protected:
  std::string error(const std::string& yaml) const {
    return usage_error([&] { read(yaml); });
  }
};

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
  EXPECT_EQ(error("zzz: 1"), "a.yaml:1: unknown key 'zzz'; known keys: title, flag, colour, inner, words");
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

TEST_F(Machinery, lays_a_file_over_its_bases) {
  write("shared/root.yaml",
        "title: root\ninner:\n  count: 1\n  rate: 0.25\n  weights: [1, 2, 3]\nflag: true\n");
  write("shared/middle.yaml", "base: root.yaml\ninner: {count: 2}\n");
  const auto top = write("top.yaml", "base: shared/middle.yaml\ninner:\n  weights: [9]\n");
  Outer config;
  read_config(load_config_tree(top), config);
  EXPECT_EQ(config.title, "root");
  EXPECT_EQ(config.inner.count, 2);
  EXPECT_EQ(config.inner.rate, 0.25);
  EXPECT_EQ(config.inner.weights, std::vector<double>{9.0});
  EXPECT_TRUE(config.flag);
}

TEST_F(Machinery, keeps_what_a_base_says_under_an_empty_section) {
  write("root.yaml", "inner: {count: 1}\n");
  Outer config;
  read_config(load_config_tree(write("top.yaml", "base: root.yaml\ninner:\n")), config);
  EXPECT_EQ(config.inner.count, 1);
}

TEST_F(Machinery, names_the_file_of_a_chain_that_is_wrong) {
  const auto load = [&](const std::filesystem::path& path) {
    return usage_error([&] {
      Outer config;
      read_config(load_config_tree(path), config);
    });
  };
  write("shared/root.yaml", "\ninner: {cuont: 1}\n");
  EXPECT_EQ(load(write("top.yaml", "base: shared/root.yaml\n")),
            "shared/root.yaml:2: unknown key 'inner.cuont'; did you mean inner.count?");
  EXPECT_EQ(load(write("lost.yaml", "flag: true\nbase: gone.yaml\n")),
            "lost.yaml:2: base: gone.yaml: there is no such configuration file");
  EXPECT_EQ(load(root_ / "nowhere.yaml"), "nowhere.yaml: there is no such configuration file");
  EXPECT_EQ(load(write("list.yaml", "- 1\n- 2\n")),
            "list.yaml:1: a configuration is a mapping (key: value), this is a list");
  EXPECT_EQ(load(write("word.yaml", "hello")),
            "word.yaml:1: a configuration is a mapping (key: value), this is a single value");
  EXPECT_EQ(load(write("listed.yaml", "base: [a, b]\n")),
            "listed.yaml:1: base: expected the path of another configuration file");
  write("one.yaml", "base: two.yaml\n");
  EXPECT_EQ(load(write("two.yaml", "base: one.yaml\n")),
            "one.yaml:1: base: two.yaml is its own base: break the circle");
  EXPECT_EQ(load(write("self.yaml", "base: self.yaml\n")),
            "self.yaml:1: base: self.yaml is its own base: break the circle");
  for (int i = 0; i < 20; ++i)
    write("chain" + std::to_string(i) + ".yaml", "base: chain" + std::to_string(i + 1) + ".yaml\n");
  EXPECT_THAT(load(root_ / "chain0.yaml"), ::testing::HasSubstr("a chain of more than 16 files"));
  std::filesystem::create_directory(root_ / "folder");
  EXPECT_EQ(load(root_ / "folder"), "folder: not a regular file");
}

TEST_F(Machinery, overrides_in_order) {
  ConfigNode tree = parse_config("inner: {count: 1}\nwords: [a]\n", "a.yaml");
  for (const char* argument : {"inner.count=2", "inner.count=3", "title=a: b # c", "words=[x, y]",
                               "flag=true", "inner.weights=4", "inner={rate: 0.125}"})
    apply_override(tree, argument);
  Outer config;
  read_config(tree, config);
  EXPECT_EQ(config.inner.count, 3);
  EXPECT_EQ(config.inner.rate, 0.125);
  EXPECT_EQ(config.inner.weights, std::vector<double>{4.0});
  EXPECT_EQ(config.title, "a: b # c");
  EXPECT_EQ(config.words, (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(config.flag);
}

TEST_F(Machinery, names_the_argument_that_is_wrong) {
  const auto error = [&](const std::string& argument) {
    return usage_error([&] {
      ConfigNode tree = parse_config("flag: true\n", "a.yaml");
      apply_override(tree, argument);
      Outer config;
      read_config(tree, config);
    });
  };
  const std::string form = ": expected key.path=value, for example training.steps=1000";
  EXPECT_EQ(error("inner.cuont=1"),
            "argument 'inner.cuont=1': unknown key 'inner.cuont'; did you mean inner.count?");
  EXPECT_EQ(error("inner.count=many"),
            "argument 'inner.count=many': inner.count: expected an integer, got 'many'");
  EXPECT_EQ(error("flag.deeper=1"), "argument 'flag.deeper=1': flag: expected true or false, got a section");
  EXPECT_EQ(error("words="), "argument 'words=': words: expected a list of texts, got the quoted text ''");
  EXPECT_EQ(error("inner.count="),
            "argument 'inner.count=': inner.count: expected an integer, got the quoted text ''");
  EXPECT_EQ(error("--fast"), "argument '--fast'" + form);
  EXPECT_EQ(error("=3"), "argument '=3'" + form);
  EXPECT_EQ(error(".a=3"), "argument '.a=3'" + form);
  EXPECT_EQ(error("a..b=3"), "argument 'a..b=3'" + form);
  EXPECT_THAT(error("words=[a"), ::testing::StartsWith("argument 'words=[a': a key must be a word"));
  EXPECT_THAT(error(std::string(1 << 16, 'a') + "=1"), ::testing::HasSubstr("unknown key"));
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "a.";
  EXPECT_THAT(error(deep + "a=1"), ::testing::HasSubstr("too many parts"));
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
  using config_detail::print_value;
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
    // Any finite double, every bit pattern being as likely as the next.
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
}  // namespace dtopp

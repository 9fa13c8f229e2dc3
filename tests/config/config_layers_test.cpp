// Tests the generic machinery on a struct of its own: files override their bases, arguments override files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/forbidden.h"
#include "tests/config/machinery.h"

namespace dtopp::config {
namespace {

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

TEST_F(Machinery, a_method_wins_over_the_layers_below_and_loses_to_its_own_layer) {
  write("methods.yaml",
        "title: root\ninner: {count: 1, rate: 0.25}\n"
        "methods: {few: {inner: {count: 5, rate: 0.5}}, many: {inner: {count: 50}, flag: true}}\n");
  write("preset.yaml",
        "base: methods.yaml\nmethods: {many: {inner: {rate: 2}}}\nmethod: few\ninner: {rate: 1}\n");
  const auto loaded = [&](const std::string& file, const std::vector<std::string>& arguments) {
    ConfigNode tree = load_config_tree(root_ / file);
    apply_overrides(tree, arguments);
    EXPECT_TRUE(take(tree, "methods") && take(tree, "method"));
    Outer config;
    read_config(tree, config);
    return config;
  };
  const Outer preset = loaded("preset.yaml", {});
  EXPECT_EQ(preset.inner.count, 5);
  EXPECT_EQ(preset.inner.rate, 1);
  EXPECT_FALSE(preset.flag);
  // The argument `method` comes first, wherever it stands.
  const Outer many = loaded("preset.yaml", {"inner.count=7", "method=many"});
  EXPECT_EQ(many.inner.count, 7);
  EXPECT_EQ(many.inner.rate, 2);
  EXPECT_TRUE(many.flag);
  write("own.yaml", "base: preset.yaml\nmethod: many\ninner: {count: 3}\n");
  EXPECT_EQ(loaded("own.yaml", {}).inner.count, 3);
  EXPECT_EQ(loaded("own.yaml", {}).inner.rate, 2);
}

TEST_F(Machinery, an_unknown_method_names_the_known_ones) {
  write("preset.yaml", "methods: {few: {flag: true}, many:}\n");
  EXPECT_EQ(usage_error([&] { load_config_tree(write("a.yaml", "base: preset.yaml\nmethod: fwe\n")); }),
            "a.yaml:2: method: expected one of few, many, got 'fwe'; did you mean few?");
  EXPECT_EQ(usage_error([&] { load_config_tree(write("b.yaml", "method: few\n")); }),
            "b.yaml:1: method: this configuration defines no methods; set routing.method");
  EXPECT_EQ(usage_error([&] { load_config_tree(root_ / "preset-fewer.yaml"); }),
            "preset-fewer.yaml: there is no such configuration file; did you mean preset.yaml method=few?");
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
            "one.yaml:1: base: two.yaml is its own base; break the circle");
  EXPECT_EQ(load(write("self.yaml", "base: self.yaml\n")),
            "self.yaml:1: base: self.yaml is its own base; break the circle");
  for (int i = 0; i < 20; ++i)
    write("chain" + std::to_string(i) + ".yaml", "base: chain" + std::to_string(i + 1) + ".yaml\n");
  EXPECT_THAT(load(root_ / "chain0.yaml"), ::testing::HasSubstr("a chain of more than 16 files"));
  std::filesystem::create_directory(root_ / "folder");
  EXPECT_EQ(load(root_ / "folder"), "folder: not a regular file");
}

TEST_F(Machinery, a_forbidden_folder_is_named_with_the_systems_reason) {
  const auto path = write("locked/a.yaml", "flag: true\n");
  const ForbiddenDirectory forbidden(root_ / "locked");
  EXPECT_THROW(load_config_tree(path), DataError);
  try {
    load_config_tree(path);
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("locked/a.yaml: cannot read its status: Permission denied"));
  }
}

TEST_F(Machinery, a_file_that_is_too_large_is_not_read) {
  EXPECT_EQ(
      usage_error([&] { load_config_tree(write("large.yaml", std::string(kMaxConfigBytes + 1, ' '))); }),
      "large.yaml: larger than 1048576 bytes");
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

}  // namespace
}  // namespace dtopp::config

#include "dtopp/config/data_config.h"

#include <gmock/gmock.h>

#include "dtopp/config/run_config.h"
#include "tests/base/scratch_directory.h"
#include "tests/config/model_sizes.h"
#include "tests/config/temporary_files.h"

namespace dtopp::config {
namespace {

class DataConfigTest : public TemporaryFiles {
 protected:
  RunConfig load(const std::vector<std::string>& overrides) const {
    return load_run_config(write("run.yaml", kModelYaml + "output: runs/x\n"), overrides);
  }
};

TEST_F(DataConfigTest, sources_have_weights_where_one_has) {
  EXPECT_FALSE(load({"data.train=[a, b]"}).data.is_weighted());
  EXPECT_FALSE(load({"data.train=[{path: a}, b]"}).data.is_weighted());
  EXPECT_EQ(paths_of(load({"data.train=a"}).data.train), std::vector<std::string>{"a"});
  const RunConfig config = load({"data.train=[{path: a b, weight: 0.7}, c]"});
  EXPECT_EQ(paths_of(config.data.train), (std::vector<std::string>{"a b", "c"}));
  EXPECT_EQ(config.data.weights(), (std::vector<double>{0.7, 1}));
  EXPECT_THAT(to_yaml(config), ::testing::HasSubstr("  train: [{path: \"a b\", weight: 0.7}, c]\n"));
  EXPECT_EQ(parse_run_config(to_yaml(config), "text").data.train, config.data.train);
}

TEST_F(DataConfigTest, held_out_sources_have_names) {
  using Names = std::vector<std::string>;
  EXPECT_FALSE(load({"data.train=t", "data.validation=a"}).data.validates_by_source());
  EXPECT_TRUE(load({"data.train=t", "data.validation=[{path: a, name: web}]"}).data.validates_by_source());
  const RunConfig config = load({"data.train=t", "data.validation=[x/web, {path: y/web, name: b}, z/code]"});
  EXPECT_TRUE(config.data.validates_by_source());
  EXPECT_EQ(source_names(config.data.validation), (Names{"web", "b", "code"}));
  EXPECT_THAT(to_yaml(config),
              ::testing::HasSubstr("  validation: [x/web, {path: y/web, name: b}, z/code]\n"));
  EXPECT_EQ(parse_run_config(to_yaml(config), "text").data.validation, config.data.validation);
}

TEST_F(DataConfigTest, validation_sources_have_the_shares_of_training_sources_with_their_names) {
  const auto shares = [&](const std::string& train, const std::string& validation) {
    return load({"data.train=" + train, "data.validation=" + validation}).data.mixture_shares();
  };
  const std::string train = "[{path: t/web, weight: 3}, {path: t/x, name: code, weight: 1}]";
  EXPECT_EQ(shares(train, "[v/code, v/books, v/web]"), (std::vector<double>{0.25, 0, 0.75}));
  EXPECT_TRUE(shares(train, "[v/books, v/web]").empty());
  EXPECT_TRUE(shares("[t/web, t/code]", "[v/code, v/web]").empty());
  EXPECT_TRUE(shares("[{path: t/web, weight: 1}]", "v/web").empty());
}

TEST_F(DataConfigTest, sources_that_metrics_cannot_tell_apart_are_refused) {
  for (const auto& [override, part] : std::vector<std::pair<std::string, std::string>>{
           {"data.validation=[a, ./a]", "data.validation: names ./a twice"},
           {"data.validation=[x/a, {path: b, name: a}]", "data.validation: two sources have the name a"},
           {"data.validation=[{path: a, name: layer_00}]", "layer_00"},
           {"data.validation=[{path: a, name: x/y}]", "the name 'x/y'"},
           {"data.validation=[{path: a, weight: 1}]",
            "data.validation: only sources of data.train have weights"},
           {"data.train=[{path: a, name: x}]", "data.train: a source with a name needs weights"}})
    EXPECT_THAT(error_of<UsageError>([&] { load({"data.train=t", override}); }), ::testing::HasSubstr(part));
}

TEST(SourceNames, are_stems_with_as_many_folders_as_tell_them_apart) {
  const auto names = [](const std::vector<std::string>& paths) {
    std::vector<DataSource> sources;
    for (const std::string& path : paths) sources.push_back({.path = path});
    return source_names(sources);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({"data/web", "data/code/", "x/books.npy"}), (Names{"web", "code", "books"}));
  EXPECT_EQ(names({"data/web/train", "data/code/train"}), (Names{"web_train", "code_train"}));
  EXPECT_EQ(names({"train", "b/train"}), (Names{"train", "b_train"}));
  EXPECT_THROW(names({"a", "./a"}), std::invalid_argument);
}

}  // namespace
}  // namespace dtopp::config

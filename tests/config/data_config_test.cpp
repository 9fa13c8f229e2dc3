#include "dtopp/config/data_config.h"

#include <gmock/gmock.h>

#include "dtopp/config/run_config.h"
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
  EXPECT_EQ(load({"data.train=a"}).data.train_paths(), std::vector<std::string>{"a"});
  const RunConfig config = load({"data.train=[{path: a b, weight: 0.7}, c]"});
  EXPECT_EQ(config.data.train_paths(), (std::vector<std::string>{"a b", "c"}));
  EXPECT_EQ(config.data.weights(), (std::vector<double>{0.7, 1}));
  EXPECT_THAT(to_yaml(config), ::testing::HasSubstr("  train: [{path: \"a b\", weight: 0.7}, c]\n"));
  EXPECT_EQ(parse_run_config(to_yaml(config), "text").data.train, config.data.train);
}

}  // namespace
}  // namespace dtopp::config

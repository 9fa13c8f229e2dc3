// A run's configuration and its overrides, parted by NUL. A printed configuration reads back equal.
#include "dtopp/config/run_config.h"

#include "dtopp/config/config.h"
#include "tests/fuzz/fuzz.h"

using namespace dtopp;

static config::RunConfig read(const config::ConfigNode& tree) {
  config::RunConfig config;
  config::read_config(tree, config);
  return config;
}

// Whether the values work together does not matter here.
static void require_same(const config::ConfigNode& tree) {
  const config::RunConfig config = read(tree);
  const config::RunConfig again = read(config::parse_config(config::to_yaml(config), "printed"));
  fuzz::require(config::differing_keys(config, again).empty(), "a printed configuration is the same");
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const std::string yaml = input.part();
  fuzz::accepts([&] { require_same(config::parse_config(yaml, "config.yaml")); });
  fuzz::accepts([&] { config::parse_run_config(yaml, "config.yaml"); });
  std::vector<std::string> overrides;
  while (!input.empty() && overrides.size() < 16) overrides.push_back(input.part());
  if (overrides.empty()) return 0;
  fuzz::accepts([&] {
    config::ConfigNode tree = config::parse_config(yaml, "config.yaml");
    config::apply_overrides(tree, overrides);
    require_same(tree);
    config::run_config_of(tree);
  });
  return 0;
}

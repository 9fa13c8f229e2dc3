// The pages on configuration and presets say what the code does.
#include <array>
#include <cstdio>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/files.h"
#include "dtopp/config/config.h"
#include "dtopp/plan/plan.h"

namespace dtopp {
namespace {

const std::filesystem::path kRoot = DTOPP_SOURCE_DIR;

TEST(ConfigurationPage, lists_every_key_with_its_default_and_no_other) {
  const std::string page = read_file(kRoot / "docs/configuration.md");
  std::vector<std::pair<std::string, std::string>> leaves;
  flatten_config(RunConfig{}, "", leaves);
  for (const auto& [key, value] : leaves) {
    std::string row = "\n| `" + key + "` | ";
    row += value == "\"\"" ? "none" : "`" + value + "`";
    EXPECT_THAT(page, ::testing::HasSubstr(row + " | "));
  }
  size_t rows = 0;
  for (size_t at = page.find("\n| `"); at != std::string::npos; at = page.find("\n| `", at + 1)) ++rows;
  EXPECT_EQ(rows, leaves.size());
}

TEST(PresetsPage, shows_the_plans_numbers) {
  const std::string page = read_file(kRoot / "docs/presets.md");
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    std::string name = entry.path().stem().string();
    const bool paper = name.starts_with("moe-");
    if (paper && !(name.ends_with("-dtop-p"))) continue;
    const Plan plan = make_plan(load_run_config(entry.path(), {}));
    if (paper) name.replace(name.size() - std::string("dtop-p").size(), std::string::npos, "*");
    std::array<char, 200> row{};
    std::snprintf(
        row.data(), row.size(), "\n| `%s` | %.1f M | %.1f M | %.3f G | %.2f GiB |\n", name.c_str(),
        static_cast<double>(plan.parameters) / 1e6, static_cast<double>(plan.active_parameters) / 1e6,
        static_cast<double>(plan.flops_per_token) / 1e9, static_cast<double>(plan.memory_bytes()) / 0x1p30);
    EXPECT_THAT(page, ::testing::HasSubstr(row.data()));
  }
}

}  // namespace
}  // namespace dtopp

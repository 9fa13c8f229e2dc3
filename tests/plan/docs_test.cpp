// Tests that the pages on configuration, presets and scale agree with the code.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/files.h"
#include "dtopp/base/progress.h"
#include "dtopp/config/config.h"
#include "dtopp/plan/expert_parallel.h"
#include "dtopp/plan/step_time.h"

namespace dtopp {
namespace {

const std::filesystem::path kRoot = DTOPP_SOURCE_DIR;

TEST(ConfigurationPage, lists_every_key_with_its_default_and_no_other) {
  const std::string page = read_file(kRoot / "docs/configuration.md");
  std::vector<std::pair<std::string, std::string>> leaves;
  for (const ModelType type : {ModelType::kLanguageModel, ModelType::kDiffusionTransformer}) {
    RunConfig config;
    config.model.type = type;
    std::vector<std::pair<std::string, std::string>> of_type;
    flatten_config(config, "", of_type);
    for (const auto& leaf : of_type) {
      const bool is_type = leaf.first == "model.type" && type != ModelType::kLanguageModel;
      if (!is_type && std::ranges::find(leaves, leaf) == leaves.end()) leaves.push_back(leaf);
    }
  }
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
    const bool paper = name.starts_with("moe-") || name.starts_with("dit-moe-0.9b");
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

// "dense-0.4b" or "moe-…-dtop-p": the models that the paper trained and that the scale page lists.
bool is_of_the_paper(const std::string& name) {
  return name.starts_with("dense-") || (name.starts_with("moe-") && name.ends_with("-dtop-p"));
}

TEST(ScalePage, shows_the_plans_predictions) {
  const std::string page = read_file(kRoot / "docs/scale.md");
  const PlanDevice device = find_device("h100");
  size_t rows = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "configs")) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".yaml" || !is_of_the_paper(name)) continue;
    for (const int64_t ranks : {64, 128}) {
      const RunConfig config =
          load_run_config(entry.path(), {"training.micro_batch_size=" + std::to_string(512 / ranks)});
      const std::vector<Plan> plans =
          plans_by_expert_parallel(config, {.ranks = ranks, .nodes = ranks / 8}, Device::kCuda);
      const Recommendation best = recommend(plans, device);
      std::string row = "\n| `" + name + "` | " + std::to_string(ranks) + " |";
      const int64_t degree = best.expert_parallel;
      EXPECT_EQ(best.fastest, degree);
      const Plan& plan =
          *std::ranges::find(plans, degree, [](const Plan& one) { return one.layout.expert_parallel; });
      double between = 0;
      for (const CollectiveBytes& sent : by_collective(plan.communication))
        between += static_cast<double>(sent.between);
      const StepTime time = plan_step_time(plan, *device.rates);
      std::array<char, 200> text{};
      std::snprintf(text.data(), text.size(), " %d | %s | %s | %.3f s | %.1f %% |", static_cast<int>(degree),
                    format_bytes(static_cast<double>(plan.memory_bytes())).c_str(),
                    format_bytes(between).c_str(), time.seconds(), 100 * time.mfu);
      row += text.data();
      EXPECT_THAT(page, ::testing::HasSubstr(row + "\n"));
      ++rows;
    }
  }
  EXPECT_EQ(rows, 2 * (3 + 7));
}

}  // namespace
}  // namespace dtopp

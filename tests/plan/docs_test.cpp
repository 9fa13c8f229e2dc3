// Tests that the pages on configuration and presets and the benchmarks of scale agree with the code.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/config/config.h"
#include "dtopp/plan/plan.h"

namespace dtopp::plan {
namespace {

const std::filesystem::path kRoot = DTOPP_SOURCE_DIR;

// The keys without a default.
constexpr std::array<std::string_view, 10> kSizes = {
    "model.hidden_size", "model.num_layers", "model.num_heads",       "model.ffn_hidden_size",
    "model.num_experts", "model.vocab_size", "model.sequence_length", "model.image_size",
    "model.channels",    "model.patch_size"};

TEST(ConfigurationPage, lists_every_key_with_its_default_and_no_other) {
  const std::string page = read_file(kRoot / "docs/reference/configuration.md");
  std::vector<std::pair<std::string, std::string>> leaves;
  for (const config::ModelType type :
       {config::ModelType::kLanguageModel, config::ModelType::kDiffusionTransformer}) {
    config::RunConfig config;
    config.model.type = type;
    for (const auto& leaf : config::flatten_config(config)) {
      const bool is_type = leaf.first == "model.type" && type != config::ModelType::kLanguageModel;
      if (!is_type && std::ranges::find(leaves, leaf) == leaves.end()) leaves.push_back(leaf);
    }
  }
  for (const auto& [key, value] : leaves) {
    std::string row = "\n| `" + key + "` | ";
    const bool is_required = std::ranges::find(kSizes, key) != kSizes.end();
    row += is_required ? "required" : value == "\"\"" ? "none" : "`" + value + "`";
    EXPECT_THAT(page, ::testing::HasSubstr(row + " | "));
  }
  size_t rows = 0;
  for (size_t at = page.find("\n| `"); at != std::string::npos; at = page.find("\n| `", at + 1)) ++rows;
  EXPECT_EQ(rows, leaves.size());
}

TEST(PresetsPage, shows_the_plans_numbers) {
  const std::string page = read_file(kRoot / "docs/reference/presets.md");
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    const Plan plan = make_plan(config::load_run_config(entry.path(), {"method=dtop_p"}));
    std::array<char, 200> row{};
    std::snprintf(
        row.data(), row.size(), "\n| `%s` | %.1f | %.1f | %.3f | %.2f |\n", entry.path().stem().c_str(),
        static_cast<double>(plan.parameters) / 1e6, static_cast<double>(plan.active_parameters) / 1e6,
        static_cast<double>(plan.flops_per_token) / 1e9, static_cast<double>(plan.memory_bytes()) / 0x1p30);
    EXPECT_THAT(page, ::testing::HasSubstr(row.data()));
  }
}

// The page shows each preset with DTop-p, and one dense model per active size.
std::vector<std::string> methods_shown(const std::string& name) {
  const bool is_small = name.starts_with("lab") || name.starts_with("quickstart");
  const bool is_other_1_3b = name.starts_with("moe-1.3b") && name != "moe-1.3b-6.9b-64e8a";
  return is_small || is_other_1_3b ? std::vector<std::string>{"dtop_p"}
                                   : std::vector<std::string>{"dense", "dtop_p"};
}

std::string row_name(const std::string& name, const std::string& method) {
  return method == "dtop_p" ? name : name + " method=" + method;
}

std::vector<std::pair<std::string, int64_t>> product(const std::vector<std::string>& methods,
                                                     const std::vector<int64_t>& ranks) {
  std::vector<std::pair<std::string, int64_t>> all;
  for (const std::string& method : methods) {
    for (const int64_t count : ranks) all.emplace_back(method, count);
  }
  return all;
}

TEST(ScalePage, shows_the_plans_predictions) {
  const std::string page = read_file(kRoot / "benchmarks/scale.md");
  const device::PlanDevice device = device::find_device("h100");
  size_t rows = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "configs")) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".yaml" || !name.starts_with("moe-")) continue;
    for (const auto& [method, ranks] : product(methods_shown(name), {64, 128})) {
      const std::string micro_batch = "training.micro_batch_size=" + std::to_string(512 / ranks);
      const config::RunConfig config =
          config::load_run_config(entry.path(), {"method=" + method, micro_batch});
      const std::vector<Plan> plans =
          plans_by_expert_parallel(config, {.world_size = ranks, .nodes = ranks / 8}, config::Device::kCuda);
      const Recommendation best = recommend(plans, device);
      std::string row = "\n| `" + row_name(name, method) + "` | " + std::to_string(ranks) + " |";
      const int64_t degree = best.expert_parallel;
      EXPECT_EQ(best.fastest, degree);
      const Plan& plan = *std::ranges::find(plans, degree, [](const Plan& one) { return one.dims.ep_size; });
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
}  // namespace dtopp::plan

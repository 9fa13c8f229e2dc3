// Tests every file of configs/ against the paper's two tables.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/config/run_config.h"
#include "dtopp/plan/plan.h"

namespace dtopp::plan {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(DTOPP_SOURCE_DIR) / "configs";

struct Row {
  const char* name;
  int64_t layers, heads, hidden, ffn, experts;
  double active;
};

// Source: paper, table of architectures.
const Row kDenseRows[] = {{"moe-0.4b-3.7b-64e8a", 16, 16, 1024, 4096, 1, 0},
                          {"moe-1.3b-6.9b-64e8a", 16, 16, 2048, 8192, 1, 0},
                          {"moe-2.4b-13.6b-64e8a", 32, 32, 2048, 8192, 1, 0}};
const Row kMoeRows[] = {
    {"moe-0.4b-3.7b-64e8a", 16, 16, 1024, 512, 64, 8},
    {"moe-1.3b-2.1b-16e8a", 16, 16, 2048, 1024, 16, 8},
    {"moe-1.3b-3.7b-32e8a", 16, 16, 2048, 1024, 32, 8},
    {"moe-1.3b-6.9b-32e4a", 16, 16, 2048, 2048, 32, 4},
    {"moe-1.3b-6.9b-64e8a", 16, 16, 2048, 1024, 64, 8},
    {"moe-1.3b-6.9b-128e16a", 16, 16, 2048, 512, 128, 16},
    {"moe-2.4b-13.6b-64e8a", 32, 32, 2048, 1024, 64, 8},
};

constexpr const char* kMethods[] = {"dense",       "top_k",  "top_k_bias",
                                    "top_p",       "dtop_p", "dtop_p_layerwise",
                                    "dtop_p_bias", "relu",   "expert_threshold"};

config::RunConfig load(const std::string& name, const std::string& method) {
  return config::load_run_config(kConfigs / (name + ".yaml"), {"method=" + method});
}

void expect_row(const config::RunConfig& config, const Row& row) {
  EXPECT_EQ(config.model.num_layers, row.layers) << config.name;
  EXPECT_EQ(config.model.num_heads, row.heads) << config.name;
  EXPECT_EQ(config.model.hidden_size, row.hidden) << config.name;
  EXPECT_EQ(config.model.ffn_hidden_size, row.ffn) << config.name;
  EXPECT_EQ(config.model.num_experts, row.experts) << config.name;
  EXPECT_EQ(config.model.vocab_size, 50432);
  EXPECT_EQ(config.model.sequence_length, 2048);
  EXPECT_TRUE(config.model.tie_embeddings);
  EXPECT_EQ(config.model.init_std, 0.02);
  // Source: paper, table of training hyperparameters.
  EXPECT_EQ(config.training.global_batch_size, 512);
  EXPECT_EQ(config.training.steps, 95367);
  EXPECT_EQ(config.optimizer.warmup_steps, 2500);
  EXPECT_EQ(config.optimizer.lr, 3e-3);
  EXPECT_EQ(config.optimizer.min_lr, 3e-5);
  EXPECT_EQ(config.optimizer.weight_decay, 3.3e-2);
  EXPECT_EQ(config.optimizer.betas, (std::vector<double>{0.9, 0.95}));
  EXPECT_EQ(config.optimizer.eps, 1e-8);
  EXPECT_EQ(config.optimizer.grad_clip, 1.0);
  EXPECT_EQ(config.loss.lm_z, 1e-4);
  EXPECT_EQ(config.loss.router_z, 0.0);
  // Source: paper, table of evaluation suites (the tasks measured during pre-training).
  EXPECT_EQ(config.validation.tasks, (std::vector<std::string>{"hellaswag", "arc_easy"}));
  EXPECT_EQ(config.validation.task_data, "data/eval");
}

// The count by hand: embedding V D; per block 4 D^2 + 4 D (attention with its norms, two norms), router E D
// (+ 1) and experts 3 E D F; the last norm D.
int64_t parameters_by_hand(const Row& row, bool dynamic) {
  const int64_t D = row.hidden;
  const int64_t router = row.experts > 1 ? row.experts * D + (dynamic ? 1 : 0) : 0;
  return 50432 * D + row.layers * (4 * D * D + 4 * D + router + 3 * row.experts * D * row.ffn) + D;
}

TEST(Presets, every_file_trains_with_every_method_and_is_named_after_itself) {
  std::set<std::string> outputs;
  for (const auto& entry : std::filesystem::directory_iterator(kConfigs)) {
    if (entry.path().extension() != ".yaml") continue;
    const std::string name = entry.path().stem();
    const config::RunConfig config = config::load_run_config(entry.path(), {});
    EXPECT_EQ(config.routing.method, config::RoutingMethod::kDTopP);
    const bool is_paper = name.starts_with("moe-") || name.starts_with("dit-");
    const bool has_fixed_law = is_paper || name == "small" || name == "cifar10";
    EXPECT_EQ(config.routing.controller,
              has_fixed_law ? config::Controller::kPi : config::Controller::kSolve);
    for (const char* method : kMethods) {
      const config::RunConfig of_method = load(name, method);
      if (!has_fixed_law) {
        EXPECT_EQ(of_method.name, name);
        continue;
      }
      EXPECT_EQ(of_method.name, name + "-" + method);
      EXPECT_TRUE(outputs.insert(of_method.output).second) << of_method.output << " is used twice";
    }
    // The dense model is as wide as the active experts.
    const config::RunConfig dense = load(name, "dense");
    EXPECT_EQ(static_cast<double>(dense.model.ffn_hidden_size),
              config.routing.experts[0] * static_cast<double>(config.model.ffn_hidden_size));
    EXPECT_TRUE(dense.model.is_dense());
  }
  EXPECT_EQ(outputs.size(), std::size(kMethods) * (7 + 5 + 2));
}

TEST(Presets, dense_rows_follow_the_paper) {
  for (const Row& row : kDenseRows) {
    const config::RunConfig config = load(row.name, "dense");
    expect_row(config, row);
    EXPECT_EQ(config.loss.load_balance, 0.0);
    EXPECT_EQ(config.loss.dynamic, 0.0);
    EXPECT_EQ(make_plan(config).parameters, static_cast<uint64_t>(parameters_by_hand(row, false)))
        << row.name;
    EXPECT_EQ(make_plan(config).active_parameters, make_plan(config).parameters);
  }
}

TEST(Presets, moe_rows_follow_the_paper_under_every_method) {
  for (const Row& row : kMoeRows) {
    const std::string name = row.name;
    const config::RunConfig top_k = load(name, "top_k");
    EXPECT_EQ(top_k.routing.method, config::RoutingMethod::kTopK);
    EXPECT_EQ(top_k.routing.experts, std::vector<double>{row.active});
    EXPECT_EQ(top_k.routing.normalization, config::Normalization::kFixed);
    EXPECT_EQ(top_k.loss.dynamic, 0.0);
    const config::RunConfig top_p = load(name, "top_p");
    EXPECT_EQ(top_p.routing.method, config::RoutingMethod::kTopP);
    EXPECT_EQ(top_p.routing.threshold, 0.35);
    EXPECT_EQ(top_p.routing.normalization, config::Normalization::kFixed);
    EXPECT_EQ(top_p.loss.dynamic, 1e-3);
    const config::RunConfig dtop_p = load(name, "dtop_p");
    EXPECT_EQ(dtop_p.routing.scope, config::ThresholdScope::kGlobal);
    const config::RunConfig layer = load(name, "dtop_p_layerwise");
    EXPECT_EQ(layer.routing.scope, config::ThresholdScope::kLayer);
    for (const config::RunConfig* config : {&dtop_p, &layer}) {
      EXPECT_EQ(config->routing.method, config::RoutingMethod::kDTopP);
      EXPECT_EQ(config->routing.threshold, 0.25);
      EXPECT_EQ(config->routing.kp, 0.1);
      EXPECT_EQ(config->routing.ki, 0.1);
      EXPECT_EQ(config->routing.experts, std::vector<double>{row.active});
      EXPECT_EQ(config->routing.normalization, config::Normalization::kDynamic);
      EXPECT_EQ(config->loss.dynamic, 1e-3);
    }
    for (const config::RunConfig* config : {&top_k, &top_p, &dtop_p, &layer}) {
      expect_row(*config, row);
      EXPECT_EQ(config->loss.load_balance, 1e-4);
      const Plan plan = make_plan(*config);
      const bool dynamic = config->routing.normalization == config::Normalization::kDynamic;
      EXPECT_EQ(plan.parameters, static_cast<uint64_t>(parameters_by_hand(row, dynamic))) << config->name;
      Row active = row;  // with the active experts only, but the whole router
      active.experts = static_cast<int64_t>(row.active);
      const int64_t router = (row.experts - active.experts) * row.hidden * row.layers;
      EXPECT_EQ(plan.active_parameters, static_cast<uint64_t>(parameters_by_hand(active, dynamic) + router))
          << config->name;
    }
  }
}

TEST(Presets, the_main_model_has_about_6_8_billion_parameters) {
  EXPECT_NEAR(static_cast<double>(make_plan(load("moe-1.3b-6.9b-64e8a", "dtop_p")).parameters), 6.8e9,
              0.05e9);
}

TEST(Presets, small_models_are_of_equal_active_size) {
  const config::RunConfig dense = load("small", "dense");
  for (const char* method : kMethods) {
    const config::RunConfig config = load("small", method);
    if (config.model.is_dense()) continue;
    EXPECT_EQ(4 * config.model.ffn_hidden_size, dense.model.ffn_hidden_size);
    EXPECT_EQ(config.data.train, dense.data.train);
    EXPECT_EQ(config.training.seed, dense.training.seed);
    EXPECT_GE(config.training.steps * config.training.global_batch_size * config.model.sequence_length,
              4000000);
    const auto difference = static_cast<double>(make_plan(config).active_parameters) /
                            static_cast<double>(make_plan(dense).active_parameters);
    EXPECT_NEAR(difference, 1.0, 0.005);  // the router
  }
}

// The count by hand: inputs for patches and time, the classes and "none"; a shared modulation of 6 D and a
// last one of 2 D; per block 4 D^2, gains of queries and keys, a table of 6 D and the FFN; the last layer's
// table and projection.
int64_t diffusion_parameters_by_hand(const config::ModelConfig& model, bool dynamic) {
  const int64_t D = model.hidden_size, V = model.channels * model.patch_size * model.patch_size;
  const int64_t E = model.num_experts;
  const int64_t router = E > 1 ? E * D + (dynamic ? 1 : 0) : 0;
  const int64_t ends = V * D + D + 256 * D + D + D * D + D + (model.num_classes + 1) * D;
  const int64_t modulation = 6 * D * D + 6 * D + 2 * D * D + 2 * D;
  const int64_t block = 4 * D * D + 2 * D + 6 * D + router + 3 * E * D * model.ffn_hidden_size;
  return ends + modulation + model.num_layers * block + 2 * D + V * D + V;
}

TEST(Presets, diffusion_transformers_follow_the_paper_under_every_method) {
  for (const char* method : kMethods) {
    const bool dense = std::string(method) == "dense";
    const bool has_balance_loss =
        std::set<std::string>{"top_k", "top_p", "dtop_p", "dtop_p_layerwise"}.contains(method);
    const config::RunConfig config = load("dit-moe-0.9b-3.4b-64e8a", method);
    EXPECT_EQ(config.model.type, config::ModelType::kDiffusionTransformer);
    EXPECT_EQ(config.model.num_layers, 28);
    EXPECT_EQ(config.model.hidden_size, 2048);
    EXPECT_EQ(config.model.num_heads, 16);
    EXPECT_EQ(config.optimizer.lr, 1e-4);
    EXPECT_EQ(config.optimizer.weight_decay, 1e-2);
    EXPECT_EQ(config.loss.router_z, 0.0);
    EXPECT_EQ(config.loss.load_balance, has_balance_loss ? 1e-6 : 0.0);
    const bool has_dynamic_loss = !dense && config::has_threshold(config.routing.method);
    EXPECT_EQ(config.loss.dynamic, has_dynamic_loss ? 1e-5 : 0.0);
    EXPECT_TRUE(!has_dynamic_loss || config.routing.threshold == 0.4);
    const bool dynamic = config.routing.normalization == config::Normalization::kDynamic;
    const Plan plan = make_plan(config);
    EXPECT_EQ(plan.parameters, static_cast<uint64_t>(diffusion_parameters_by_hand(config.model, dynamic)));
    // The expected figures leave out the embeddings of time and class and the last layer.
    const int64_t left_out = 8 * 2048 + (256 + 1001 + 3 * 2048) * 2048 + 2 * 16 * 2048 + 2 * 2048 + 16;
    EXPECT_NEAR(static_cast<double>(plan.parameters) - left_out, dense ? 0.85e9 : 3.32e9, 0.005e9);
  }
}

TEST(Presets, small_diffusion_transformers_are_of_equal_active_size) {
  const auto active = [](const std::string& name, const std::string& method) {
    return static_cast<double>(make_plan(load(name, method)).active_parameters);
  };
  for (const char* method : kMethods)
    EXPECT_NEAR(active("cifar10", method) / active("cifar10", "dense"), 1.0, 0.01);
  for (const std::string size : {"s", "b", "l", "xl"}) {
    const std::string name = "dit-moe-" + size + "-16e4a";
    EXPECT_NEAR(active(name, "dtop_p") / active(name, "dense"), 1.0, 0.01);
  }
}

}  // namespace
}  // namespace dtopp::plan

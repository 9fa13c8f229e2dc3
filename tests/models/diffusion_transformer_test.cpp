#include "dtopp/models/diffusion_transformer.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "dtopp/models/batch.h"
#include "dtopp/models/image_batches.h"
#include "dtopp/models/make_model.h"
#include "dtopp/models/solve_thresholds.h"
#include "dtopp/parameters/parameters.h"
#include "tests/distributed/rank_threads.h"
#include "tests/moe/fixed_threshold.h"

namespace dtopp::models {
namespace {

config::RunConfig small_diffusion() {
  config::RunConfig config;
  config.model.type = config::ModelType::kDiffusionTransformer;
  config.model.hidden_size = 16;
  config.model.num_layers = 2;
  config.model.num_heads = 2;
  config.model.ffn_hidden_size = 8;
  config.model.num_experts = 4;
  config.model.image_size = 8;
  config.model.channels = 3;
  config.model.patch_size = 2;
  config.model.num_classes = 5;
  config.model.text_length = 2;
  config.model.text_size = 6;
  config.routing.experts = {2};
  return config;
}

// Sample i is a picture whose values rise to the right. Its class is i modulo 5, and it has i modulo 3
// embeddings.
struct RisingPictures : ImageReader {
  explicit RisingPictures(uint64_t samples) : samples(samples) {}
  uint64_t size() const override { return samples; }
  TrainingImage read(uint64_t index, bool flip) const override {
    TrainingImage image;
    for (int64_t i = 0; i < 3 * 64; ++i) {
      const int64_t column = flip ? 7 - i % 8 : i % 8;
      image.x0_CHW.push_back(static_cast<float>(index) + 0.1F * static_cast<float>(column));
    }
    image.label = static_cast<int64_t>(index % 5);
    image.text_LS.assign(index % 3 * 6, static_cast<float>(index));
    return image;
  }
  uint64_t samples;
};

std::shared_ptr<const ImageReader> rising_pictures(uint64_t samples) {
  return std::make_shared<RisingPictures>(samples);
}

using Tensors = std::map<std::string, at::Tensor>;

Tensors initial_parameters(const Model& model) {
  Tensors tensors;
  for (const parameters::ParameterSpec& spec : model.parameters) {
    at::Tensor tensor = at::empty(spec.shape, at::kFloat);
    parameters::initialize(spec, 3, tensor);
    EXPECT_TRUE(tensors.emplace(spec.name, tensor).second);
  }
  return tensors;
}

TEST(DiffusionTransformer, looks_up_the_parameters_it_lists_in_their_order) {
  std::vector<config::RunConfig> configs(5, small_diffusion());
  configs[1].model.num_experts = 1;
  configs[2].model.qk_norm = config::QkNorm::kNone;
  configs[3].model.position = config::Position::kSincos;
  configs[3].model.text_length = 0;
  configs[4].model.num_classes = 0;
  for (const config::RunConfig& config : configs) {
    const Model model = make_model(config);
    const Tensors tensors = initial_parameters(model);
    std::vector<std::string> listed, used;
    for (const parameters::ParameterSpec& spec : model.parameters) listed.push_back(spec.name);
    const LossFunction losses = model.bind([&](const std::string& name) {
      if (std::ranges::find(used, name) == used.end()) used.push_back(name);
      return tensors.at(name);
    });
    const Batch batch = training_images(config, rising_pictures(20))->read(3, 4);
    const BatchLosses result = losses(batch, moe::fixed_threshold(config, 0.5));
    EXPECT_EQ(used, listed);
    EXPECT_NO_THROW(result.value(model.validation_loss));
    EXPECT_EQ(result.activations.num_layers(), model.num_routed_layers);
    EXPECT_FALSE(result.samples.has_value());
    const int64_t tokens = config.model.is_dense() ? 0 : 4 * model.tokens_per_sample;
    EXPECT_EQ(result.activations.tokens(), tokens);
  }
}

// Every gate and the last layer start at zero.
TEST(DiffusionTransformer, begins_by_predicting_nothing) {
  const config::RunConfig config = small_diffusion();
  const Model model = make_model(config);
  const Tensors tensors = initial_parameters(model);
  const Batch batch = training_images(config, rising_pictures(20))->read(0, 4);
  const LossFunction losses = model.bind([&](const std::string& name) { return tensors.at(name); });
  const at::Tensor target = batch.tensor("noise") - batch.tensor("x0");
  EXPECT_NEAR(losses(batch, moe::fixed_threshold(config, 0.5)).value("diffusion_loss").item<double>(),
              target.square().mean().item<double>(), 1e-5);
}

TEST(DiffusionTransformer, parameters_say_what_they_are_for) {
  for (const parameters::ParameterSpec& spec : make_model(small_diffusion()).parameters) {
    const bool conditioning = spec.name.starts_with("time_embed") || spec.name.ends_with("modulation.weight");
    EXPECT_EQ(spec.role == parameters::ParameterRole::kConditioning,
              conditioning && spec.name.ends_with(".weight"))
        << spec.name;
    // Like biases, tables are added, so they are not decayed.
    const bool table = spec.name == "final.table" || spec.name.ends_with(".modulation");
    EXPECT_EQ(spec.weight_decay(), spec.shape.size() > 1 && !table) << spec.name;
  }
}

TEST(DiffusionTransformer, reports_the_losses_and_experts_of_each_held_out_sample) {
  const config::RunConfig config = small_diffusion();
  const Model model = make_model(config);
  const Tensors tensors = initial_parameters(model);
  const LossFunction losses = model.bind([&](const std::string& name) { return tensors.at(name); });
  const auto batches = validation_images(config, rising_pictures(20));
  const BatchLosses all = losses(batches->read(0, 6), moe::fixed_threshold(config, 0.5));
  ASSERT_TRUE(all.samples.has_value());
  EXPECT_TRUE(all.samples->num_assignments_BL.sum(0).equal(all.activations.num_assignments()));
  for (int64_t i = 0; i < 6; ++i) {
    const BatchLosses one =
        losses(batches->read(static_cast<uint64_t>(i), 1), moe::fixed_threshold(config, 0.5));
    EXPECT_NEAR(one.samples->loss_B.item<double>(), all.samples->loss_B[i].item<double>(), 1e-5);
    EXPECT_TRUE(one.samples->num_assignments_BL[0].equal(all.samples->num_assignments_BL[i]));
  }
}

// Averaged weights need such a search: their p differs from the p of the trained weights.
TEST(DiffusionTransformer, thresholds_can_be_solved_for_a_number_of_experts) {
  const config::RunConfig config = small_diffusion();
  const Tensors tensors = initial_parameters(make_model(config));
  const DiffusionTransformer model = bind_diffusion_transformer(
      config.model, config.routing, [&](const std::string& name) { return tensors.at(name); });
  const Batch batch = training_images(config, rising_pictures(64))->read(0, 64);
  const auto experts = [&](const moe::Routing& inputs) {
    const at::NoGradGuard no_grad;
    moe::ActivationStatistics chosen(2);
    chosen.add(predict(model, batch.tensor("x0"), batch.tensor("t"), condition_of(batch), inputs).routing);
    return chosen.summary().mean;
  };
  EXPECT_NEAR(experts(solve_thresholds(config, {2.5}, at::kCPU, experts)), 2.5, 0.01);
}

// The sums of two ranks differ in their last bits; this test uses a larger difference.
TEST(SolveThresholds, gives_ranks_that_agree_the_same_after_as_many_passes) {
  std::array<int, 2> passes{};
  std::array<double, 2> solved{};
  distributed::run_group(2, [&](distributed::Collectives& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    moe::Routing routing;
    routing.ranks = &ranks;
    const auto experts = [&](const moe::Routing& with) {
      ++passes[rank];
      return 4 * with.router->metric("threshold").at(0) + 0.01 * static_cast<double>(rank);
    };
    solved[rank] = solve_thresholds(small_diffusion(), {2.5}, at::kCPU, experts, routing)
                       .router->metric("threshold")
                       .at(0);
  });
  EXPECT_EQ(solved[0], solved[1]);
  EXPECT_EQ(passes[0], passes[1]);
  EXPECT_NEAR(solved[0], 2.5 / 4, 1e-3);
}

void expect_equal(const Batch& whole, const std::vector<Batch>& pieces) {
  for (const auto& [name, tensor] : whole.tensors) {
    std::vector<at::Tensor> parts;
    for (const Batch& piece : pieces) parts.push_back(piece.tensor(name));
    EXPECT_TRUE(tensor.equal(at::cat(parts))) << name;
  }
}

TEST(DiffusionDraws, do_not_depend_on_how_samples_are_cut_into_batches) {
  config::RunConfig config = small_diffusion();
  config.diffusion.condition_dropout = 0.5;
  const auto training = training_images(config, rising_pictures(11));
  expect_equal(training->read(2, 20), {training->read(2, 1), training->read(3, 12), training->read(15, 7)});
  const auto validation = validation_images(config, rising_pictures(11));
  expect_equal(validation->read(0, 11), {validation->read(0, 4), validation->read(4, 7)});
}

TEST(DiffusionDraws, mirror_nothing_where_flip_is_off_and_draw_all_else_as_before) {
  config::RunConfig config = small_diffusion();
  const Batch flipped = training_images(config, rising_pictures(20))->read(0, 40);
  config.diffusion.flip = false;
  const Batch upright = training_images(config, rising_pictures(20))->read(0, 40);
  const at::Tensor& x0 = upright.tensor("x0");
  EXPECT_TRUE((x0.select(3, 0) < x0.select(3, 7)).all().item<bool>());
  const at::Tensor as_it_is_B = flipped.tensor("x0").eq(x0).flatten(1).all(1);
  const at::Tensor mirrored_B = flipped.tensor("x0").eq(x0.flip(3)).flatten(1).all(1);
  EXPECT_TRUE(as_it_is_B.logical_xor(mirrored_B).all().item<bool>());
  EXPECT_TRUE(mirrored_B.any().item<bool>());
  for (const char* name : {"noise", "t", "class", "text"})
    EXPECT_TRUE(flipped.tensor(name).equal(upright.tensor(name))) << name;
}

// Expects each share within six standard deviations over 4,000 samples.
TEST(DiffusionDraws, follow_their_distributions) {
  config::RunConfig config = small_diffusion();
  config.model.text_length = config.model.text_size = 0;
  constexpr int64_t kCount = 4000;
  const double deviations = 6 / std::sqrt(static_cast<double>(kCount));
  const Batch batch = training_images(config, rising_pictures(50))->read(0, kCount);
  const at::Tensor logit_B = batch.tensor("t").to(at::kDouble).logit();
  EXPECT_NEAR(logit_B.mean().item<double>(), 0, deviations);
  EXPECT_NEAR(logit_B.var().item<double>(), 1, deviations * std::sqrt(2.0));
  const at::Tensor flipped_B = batch.tensor("x0").select(3, 0).select(2, 0).select(1, 0) >
                               batch.tensor("x0").select(3, 7).select(2, 0).select(1, 0);
  EXPECT_NEAR(flipped_B.to(at::kDouble).mean().item<double>(), 0.5, 0.5 * deviations);
  const at::Tensor dropped_B = batch.tensor("class").eq(config.model.num_classes);
  EXPECT_NEAR(dropped_B.to(at::kDouble).mean().item<double>(), 0.1, 0.3 * deviations);
  config.diffusion.timesteps = config::Timesteps::kUniform;
  const at::Tensor t_B =
      training_images(config, rising_pictures(50))->read(0, kCount).tensor("t").to(at::kDouble);
  EXPECT_NEAR(t_B.mean().item<double>(), 0.5, deviations / std::sqrt(12.0));
  EXPECT_NEAR(t_B.var().item<double>(), 1 / 12.0, deviations / std::sqrt(180.0));
}

TEST(DiffusionDraws, an_epoch_holds_every_picture_once_and_texts_end_in_zeros) {
  const config::RunConfig config = small_diffusion();
  const Batch batch = validation_images(config, rising_pictures(9))->read(0, 9);
  for (int64_t i = 0; i < 9; ++i) {
    const at::Tensor filled_L = batch.tensor("text")[i].eq(static_cast<double>(i)).all(1);
    EXPECT_EQ(batch.tensor("text")[i].ne(0).any(1).sum().item<int64_t>(), i == 0 ? 0 : i % 3);
    EXPECT_TRUE(i % 3 == 0 || filled_L[0].item<bool>());
  }
  const at::Tensor x0 = training_images(config, rising_pictures(9))->read(9, 9).tensor("x0");
  const at::Tensor picture_B = x0.mean({1, 2, 3}).floor();
  EXPECT_TRUE(std::get<0>(picture_B.sort()).equal(at::arange(9, at::kFloat)));
}

TEST(DdpmSchedule, is_the_published_one) {
  // Ho et al. 2020: a_999 of the linear schedule is 4.0358e-5.
  const at::Tensor a_K = ddpm_alpha_products(at::kCPU);
  EXPECT_NEAR(a_K[0].item<double>(), 1 - 1e-4, 1e-12);
  EXPECT_NEAR(a_K[999].item<double>(), 4.0358e-5, 1e-8);
}

}  // namespace

}  // namespace dtopp::models

// Tests the validation of a Trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/models/make_model.h"
#include "dtopp/moe/make_router.h"
#include "dtopp/train/trainer.h"
#include "tiny_model.h"

namespace dtopp::train {
namespace {

TEST(Trainer, validation_disturbs_nothing) {
  const config::RunConfig config = tiny();
  Trainer plain = trainer_of(config);
  Trainer validating = trainer_of(config);
  plain.initialize();
  validating.initialize();
  for (int n = 0; n < 3; ++n) {
    step(plain);
    step(validating);
    const auto result = validating.validate(36, never);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->activations.tokens(), 36);
  }
  EXPECT_EQ(distance(plain, validating), 0);
  EXPECT_EQ(plain.state(), validating.state());
  const auto router_of = [](const Trainer& trainer) { return trainer.routing().router->state(); };
  const ops::NamedTensors a = router_of(plain), b = router_of(validating);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].second.equal(b[i].second)) << a[i].first;
}

// The data with five held-out samples: those from `begin` to `end` of them.
models::TrainingData held_out(const config::RunConfig& config, uint64_t begin, uint64_t end) {
  models::TrainingData data = data_for(config);
  data.validation = dataset_of([begin, all = data.training](uint64_t position, int64_t count) {
    return all->read(begin + position, count);
  });
  data.validation_samples = end - begin;
  return data;
}

TEST(Trainer, validation_of_sources_is_that_of_each_by_itself) {
  const config::RunConfig config = tiny();
  const auto validated = [&](models::TrainingData data, int64_t tokens) {
    Trainer trainer(config, models::make_model(config), std::move(data), at::kFloat);
    trainer.initialize();
    return trainer.validate(tokens, never).value();
  };
  models::TrainingData data = held_out(config, 0, 5);
  data.validation_sources = {{"web", 0, 3, 0.25}, {"code", 3, 2, 0.75}};
  const models::ValidationResult together = validated(data, 1000);
  ASSERT_EQ(together.sources.size(), 2U);
  for (const auto& [source, begin, end] : {std::tuple{0, 0, 3}, {1, 3, 5}}) {
    const models::ValidationResult alone = validated(held_out(config, begin, end), 1000);
    const models::ValidationSource& one = together.sources[static_cast<size_t>(source)];
    EXPECT_EQ(one.loss, alone.loss);
    EXPECT_TRUE(one.activations.histogram().equal(alone.activations.histogram()));
    EXPECT_EQ(one.activations.tokens(), (end - begin) * 12);
    EXPECT_TRUE(alone.sources.empty());
  }
  const double web = together.sources[0].loss, code = together.sources[1].loss;
  EXPECT_NEAR(together.loss, (3 * web + 2 * code) / 5, 1e-12);
  EXPECT_NEAR(together.mixture_loss.value(), 0.25 * web + 0.75 * code, 1e-12);
  EXPECT_EQ(together.activations.tokens(), 60);
  // validation.tokens are those of each source.
  EXPECT_EQ(validated(data, 2 * 12).activations.tokens(), 4 * 12);
  // One source with a name gives the bits of all samples together.
  data.validation_sources = {{"all", 0, 5}};
  const models::ValidationResult named = validated(data, 1000),
                                 plain = validated(held_out(config, 0, 5), 1000);
  EXPECT_EQ(named.loss, plain.loss);
  EXPECT_EQ(named.sources[0].loss, plain.loss);
  EXPECT_FALSE(named.mixture_loss);
}

}  // namespace
}  // namespace dtopp::train

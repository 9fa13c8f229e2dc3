#include "dtopp/optim/parameter_store.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "dtopp/base/safetensors.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::optim {
namespace {

std::vector<parameters::ParameterSpec> two_parameters() {
  return {{"matrix",
           {5, 3},
           {parameters::Distribution::kTruncatedNormal, 0.5},
           parameters::ParameterRole::kMatrix},
          {"scale", {}, {parameters::Distribution::kOne}, parameters::ParameterRole::kRouterScale}};
}

config::OptimizerConfig with_decay() {
  config::OptimizerConfig config;
  config.weight_decay = 0.1;
  return config;
}

// One process, whose tensors come from the store.
class Saving : public checkpoint::OneProcess {
 public:
  explicit Saving(const ParameterStore& store) : store_(store) {}
  void collect(const std::vector<checkpoint::TensorByteRange>& by_rank, const TakeBytes& take) override {
    store_.collect_saved(by_rank, store_.saved_shards(), alone_, take);
  }

 private:
  const ParameterStore& store_;
  distributed::SingleRank alone_;
};

class Average : public testing::TestWithParam<at::ScalarType> {
 protected:
  Average() : store_(two_parameters(), GetParam(), with_decay()) { store_.initialise(1); }

  void step(int64_t number, bool applied, const LearningRates& rates = {0.05, 0.05}) {
    store_.begin_step(1);
    for (const parameters::ParameterSpec& spec : store_.specs()) {
      const at::Tensor parameter = store_.model_param(spec.name);
      (parameter * at::full_like(parameter, 1.0 + static_cast<double>(number % 3))).sum().backward();
    }
    store_.end_micro_batch();
    store_.finish_gradients();
    store_.step(rates, at::ones({}), at::scalar_tensor(applied, at::kBool));
  }

  ParameterStore store_;
};

TEST_P(Average, follows_its_equation_over_applied_steps_alone) {
  for (const double limit : {0.9999, 0.4}) {
    store_.enable_ema(limit);
    std::map<std::string, at::Tensor> expected;
    for (const parameters::ParameterSpec& spec : store_.specs())
      expected[spec.name] = store_.main_param(spec.name).to(at::kDouble);
    const int64_t before = limit == 0.4 ? 25 : 0;  // updates of the first round
    int64_t n = before;
    for (int64_t number = 0; number < 30; ++number) {
      const bool applied = number % 6 != 4;
      step(number, applied);
      n += applied ? 1 : 0;
      const double d = std::min(limit, (1.0 + static_cast<double>(n)) / (10.0 + static_cast<double>(n)));
      for (auto& [name, ema] : expected) {
        if (applied) ema = d * ema + (1 - d) * store_.main_param(name).to(at::kDouble);
        const at::Tensor difference = store_.ema(name).to(at::kDouble) - ema;
        // Rounding errors of f32 values near 1, half an ulp each; they fade as slowly as the average.
        ASSERT_LT(difference.abs().max().item<double>(), 1e-6) << name << " after step " << number;
      }
    }
    ASSERT_EQ(n, before + 25);
  }
}

TEST_P(Average, comes_back_from_a_file_and_goes_on) {
  store_.enable_ema(0.9);
  for (int64_t number = 0; number < 3; ++number) step(number, true);
  const ScratchDirectory directory;
  Saving saving(store_);
  const checkpoint::Checkpoint checkpoint(
      checkpoint::save_checkpoint(directory.path(),
                                  {.state = {},
                                   .parameters = store_.parameter_sources(),
                                   .optimizer = store_.slot_sources(),
                                   .config_yaml = "",
                                   .tokenizer_json = "",
                                   .ema = store_.ema_sources()},
                                  /*keep=*/1, saving));
  const at::Tensor saved = store_.ema("matrix").clone();

  store_.enable_ema(0.9);  // restarts the average
  EXPECT_FALSE(store_.ema("matrix").equal(saved));
  store_.load_ema(checkpoint);
  EXPECT_TRUE(store_.ema("matrix").equal(saved));
  step(3, true);
  EXPECT_FALSE(store_.ema("matrix").equal(saved));
}

TEST_P(Average, takes_the_parameters_place_and_gives_it_back) {
  store_.enable_ema(0.9);
  for (int64_t number = 0; number < 3; ++number) step(number, true);
  const at::Tensor main_param = store_.main_param("matrix").clone(), ema = store_.ema("matrix").clone();
  const at::Tensor computed = store_.model_param("matrix").detach().clone();
  store_.swap_ema();
  EXPECT_TRUE(store_.model_param("matrix").detach().equal(ema.to(computed.scalar_type())));
  EXPECT_FALSE(store_.model_param("matrix").detach().equal(computed));
  store_.swap_ema();
  EXPECT_TRUE(store_.model_param("matrix").detach().equal(computed));
  EXPECT_TRUE(store_.main_param("matrix").equal(main_param));
  EXPECT_TRUE(store_.ema("matrix").equal(ema));
}

TEST_P(Average, changes_nothing_of_the_training) {
  ParameterStore plain(two_parameters(), GetParam(), with_decay());
  plain.initialise(1);
  std::swap(plain, store_);
  for (int64_t number = 0; number < 5; ++number) step(number, number != 2);
  std::swap(plain, store_);
  store_.enable_ema(0.99);
  for (int64_t number = 0; number < 5; ++number) step(number, number != 2);
  EXPECT_TRUE(plain.main_param("matrix").equal(store_.main_param("matrix")));
  EXPECT_TRUE(plain.ema_sources().empty());
}

// The first step of Adam moves each number by its rate.
TEST_P(Average, moves_routers_at_their_own_rate) {
  const at::Tensor matrix = store_.main_param("matrix").clone(), scale = store_.main_param("scale").clone();
  step(0, true, {0.05, 0.01});
  const at::Tensor after_decay = matrix * (1 - 0.05 * with_decay().weight_decay);
  EXPECT_TRUE((store_.main_param("matrix") - after_decay).abs().allclose(at::full({}, 0.05F), 1e-3));
  EXPECT_TRUE((store_.main_param("scale") - scale).abs().allclose(at::full({}, 0.01F), 1e-3));
}

INSTANTIATE_TEST_SUITE_P(ParameterStore, Average, testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace dtopp::optim

#include "dtopp/optim/parameter_store.h"

#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "dtopp/base/safetensors.h"
#include "dtopp/ops/moe_ffn/moe_ffn.h"
#include "tests/base/scratch_directory.h"

namespace dtopp::optim {
namespace {

// Two parameters. Only every other micro-batch reaches the second one.
class GradientAccumulatorTest : public testing::Test {
 protected:
  std::vector<at::Tensor> sums_of(bool along_tree, int64_t micro_batches, at::ScalarType type = at::kFloat) {
    const std::vector<at::Tensor> leaves = {at::zeros({40}, type).requires_grad_(),
                                            at::zeros({40}, type).requires_grad_()};
    std::vector<at::Tensor> taken(2);
    GradientAccumulator sums(leaves, along_tree,
                             [&](size_t i, at::Tensor sum) { taken[i] = std::move(sum); });
    sums.begin(micro_batches);
    for (int64_t m = 0; m < micro_batches; ++m) {
      at::Tensor loss = (leaves[0] * gradient(0, m).to(type)).sum();
      if (m % 2 == 1) loss = loss + (leaves[1] * gradient(1, m).to(type)).sum() + (leaves[1] * 0.5).sum();
      loss.backward();
      EXPECT_FALSE(leaves[0].grad().defined());
      EXPECT_EQ(taken[0].defined(), m + 1 == micro_batches);
      sums.end_micro_batch();
    }
    return taken;
  }

  static at::Tensor gradient(int64_t leaf, int64_t micro_batch) {
    at::manual_seed(static_cast<uint64_t>(100 * leaf + micro_batch));
    return at::randn({40});
  }
};

TEST_F(GradientAccumulatorTest, are_formed_along_the_tree) {
  for (const int64_t micro_batches : {1, 2, 3, 6, 8}) {
    std::vector<at::Tensor> first, second;
    for (int64_t m = 0; m < micro_batches; ++m) {
      first.push_back(gradient(0, m));
      second.push_back(m % 2 == 1 ? gradient(1, m) + 0.5 : at::Tensor());
    }
    const std::vector<at::Tensor> sums = sums_of(true, micro_batches);
    EXPECT_TRUE(sums[0].equal(distributed::tree_sum(first))) << micro_batches;
    const at::Tensor expected = distributed::tree_sum(second);
    ASSERT_EQ(sums[1].defined(), expected.defined());
    if (expected.defined()) {
      EXPECT_TRUE(sums[1].equal(expected)) << micro_batches;
    }
  }
}

TEST_F(GradientAccumulatorTest, or_one_after_another) {
  at::Tensor sum = gradient(0, 0);
  for (int64_t m = 1; m < 6; ++m) sum = sum + gradient(0, m);
  EXPECT_TRUE(sums_of(false, 6)[0].equal(sum));
  EXPECT_FALSE(sums_of(true, 6)[0].equal(sum));
}

TEST_F(GradientAccumulatorTest, are_fp32_where_the_model_computes_in_bf16) {
  const at::Tensor sum = sums_of(true, 2, at::kBFloat16)[0];
  EXPECT_EQ(sum.scalar_type(), at::kFloat);
  EXPECT_TRUE(sum.equal(gradient(0, 0).to(at::kBFloat16).to(at::kFloat) +
                        gradient(0, 1).to(at::kBFloat16).to(at::kFloat)));
}

TEST_F(GradientAccumulatorTest, are_the_same_whether_a_gradient_is_widened_before_or_while_it_is_added) {
  const auto wide = [](int64_t leaf, int64_t m) {
    return gradient(leaf, m).to(at::kBFloat16).to(at::kFloat);
  };
  for (const int64_t micro_batches : {3, 5, 8}) {
    std::vector<at::Tensor> first, second;
    at::Tensor one_by_one;
    for (int64_t m = 0; m < micro_batches; ++m) {
      first.push_back(wide(0, m));
      one_by_one = m == 0 ? first[0] : one_by_one + first.back();
      // Missing gradients fall where the tree would start a sum.
      second.push_back(m % 2 == 1 ? (wide(1, m) + 0.5).to(at::kBFloat16).to(at::kFloat) : at::Tensor());
    }
    const std::vector<at::Tensor> along_tree = sums_of(true, micro_batches, at::kBFloat16);
    EXPECT_TRUE(along_tree[0].equal(distributed::tree_sum(first))) << micro_batches;
    EXPECT_TRUE(along_tree[1].equal(distributed::tree_sum(second))) << micro_batches;
    EXPECT_TRUE(sums_of(false, micro_batches, at::kBFloat16)[0].equal(one_by_one)) << micro_batches;
    for (const at::Tensor& sum : along_tree) EXPECT_EQ(sum.scalar_type(), at::kFloat);
  }
}

// Gradients of expert weights, which moe_ffn adds up itself, and of a weight that autograd handles.
TEST_F(GradientAccumulatorTest, are_the_same_where_an_op_adds_to_them) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool along_tree : {true, false}) {
      for (const int64_t micro_batches : {1, 2, 3, 6}) {
        SCOPED_TRACE(testing::Message() << type << along_tree << micro_batches);
        at::manual_seed(3);
        const auto leaf = [&](at::IntArrayRef shape) { return at::randn(shape).to(type).requires_grad_(); };
        const std::vector<at::Tensor> weights = {leaf({3, 12, 8}), leaf({3, 8, 6})};
        const auto backward = [&](int64_t micro_batch) {
          at::manual_seed(static_cast<uint64_t>(micro_batch));
          const at::Tensor x = at::randn({30, 8}).to(type), gates = at::rand({30, 3});
          ops::moe_ffn(x, gates, weights[0], weights[1]).to(at::kFloat).square().sum().backward();
        };
        std::vector<std::vector<at::Tensor>> alone(2);
        for (int64_t m = 0; m < micro_batches; ++m) {
          backward(m);
          for (size_t i = 0; i < 2; ++i)
            alone[i].push_back(std::exchange(weights[i].mutable_grad(), at::Tensor()).to(at::kFloat));
        }
        std::vector<at::Tensor> taken(2);
        GradientAccumulator sums(weights, along_tree,
                                 [&](size_t i, at::Tensor sum) { taken[i] = std::move(sum); });
        sums.begin(micro_batches);
        for (int64_t m = 0; m < micro_batches; ++m) {
          backward(m);
          EXPECT_EQ(taken[0].defined() && taken[1].defined(), m + 1 == micro_batches);
          sums.end_micro_batch();
        }
        for (size_t i = 0; i < 2; ++i) {
          at::Tensor expected = alone[i][0];
          for (int64_t m = 1; m < micro_batches && !along_tree; ++m)
            expected = expected + alone[i][static_cast<size_t>(m)];
          if (along_tree) expected = distributed::tree_sum(alone[i]);
          EXPECT_EQ(taken[i].scalar_type(), at::kFloat);
          if (type == at::kFloat) {
            EXPECT_TRUE(taken[i].equal(expected));
          }
          // The op adds values that have not been rounded.
          EXPECT_LT((taken[i] - expected).norm().item<float>(), expected.norm().item<float>() / 256);
        }
      }
    }
  }
}

TEST_F(GradientAccumulatorTest, refuse_a_second_reader_of_a_weight_whose_gradient_an_op_completes) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const bool twice : {true, false}) {
      const auto leaf = [&](at::IntArrayRef shape) { return at::ones(shape).to(type).requires_grad_(); };
      const std::vector<at::Tensor> weights = {leaf({3, 12, 8}), leaf({3, 8, 6})};
      GradientAccumulator sums(weights, true, [](size_t, const at::Tensor&) {});
      sums.begin(2);
      const auto loss = [&] {
        return ops::moe_ffn(at::ones({30, 8}).to(type), at::ones({30, 3}), weights[0], weights[1]).sum();
      };
      loss().backward();
      sums.end_micro_batch();
      // The second micro-batch adds to the sum of the first.
      const at::Tensor other = twice ? loss() : weights[0].sum();
      EXPECT_THROW((loss() + other).backward(), c10::Error) << type << twice;
    }
  }
}

TEST_F(GradientAccumulatorTest, of_no_micro_batches_are_none) {
  for (const at::Tensor& sum : sums_of(true, 0)) EXPECT_FALSE(sum.defined());
}

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
  Average() : store_(two_parameters(), GetParam(), with_decay()) { store_.initialize(1); }

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
  plain.initialize(1);
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

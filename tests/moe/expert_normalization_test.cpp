// Tests the normalization of each expert's logits over tokens, and the sums that it learns from, against
// double precision.
#include "dtopp/moe/expert_normalization.h"

#include <gtest/gtest.h>

namespace dtopp::moe::expert_normalization_test {
namespace {

constexpr int64_t kLayers = 2, kHidden = 6, kExperts = 4, kTokens = 512;
constexpr double kSumError = 1e-5;  // of the sums' rounding to whole numbers, and of fp32

config::RunConfig config_of() {
  config::RunConfig config;
  config.model.num_layers = kLayers;
  config.model.hidden_size = kHidden;
  config.model.num_experts = kExperts;
  return config;
}

at::Tensor yes() { return at::full({}, true, at::kBool); }

class ExpertNormalizationTest : public testing::Test {
 protected:
  ExpertNormalizationTest() { at::manual_seed(1); }

  // The logits of a layer, and a step that has these inputs in all layers.
  at::Tensor logits(int64_t layer, const at::Tensor& x_TD) const { return logits(layer, x_TD, weight_); }
  at::Tensor logits(int64_t layer, const at::Tensor& x_TD, const at::Tensor& weight_CD) const {
    const ExpertNormalization::Folded router = normalization_.fold(layer, weight_CD);
    return x_TD.matmul(router.weight_CD.t()) - router.offset_C;
  }
  void step(const at::Tensor& x_TD, const at::Tensor& applied = yes()) {
    std::vector<at::Tensor> sums;
    for (int64_t layer = 0; layer < kLayers; ++layer)
      sums.push_back(logit_sums(logits(layer, x_TD), x_TD, /*stride=*/1));
    normalization_.update(at::stack(sums).to(at::kDouble), x_TD.size(0), applied);
  }
  ops::NamedTensors state() {
    ops::StateTensors list;
    normalization_.list_state(list);
    return ops::values_of(list);
  }
  static at::Tensor inputs() { return at::randn({kTokens, kHidden}) + 3 * at::arange(kHidden); }

  ExpertNormalization normalization_{config_of(), at::kCPU};
  at::Tensor weight_ = at::randn({kExperts, kHidden});
};

TEST_F(ExpertNormalizationTest, changes_no_logit_before_the_first_step) {
  const at::Tensor x_TD = inputs();
  EXPECT_TRUE(logits(0, x_TD).allclose(x_TD.matmul(weight_.t()), 1e-6, 1e-5));
}

TEST_F(ExpertNormalizationTest, removes_what_the_tokens_of_a_step_have_in_common) {
  const at::Tensor x_TD = inputs();
  step(x_TD);
  step(x_TD);  // the first step measured the squares of logits that were not centered
  for (int n = 0; n < 2000; ++n) step(x_TD);  // the means forget the first step slowly
  const at::Tensor z_TC = logits(1, x_TD);
  EXPECT_LT(z_TC.mean(0).abs().max().item<double>(), 1e-4);
  EXPECT_LT((z_TC.square().mean(0) - 1).abs().max().item<double>(), 1e-2);
}

TEST_F(ExpertNormalizationTest, keeps_running_means_of_inputs_and_of_squares) {
  at::Tensor mean_D, square_C = at::ones({kExperts}, at::kDouble);
  for (int n = 0; n < 5; ++n) {
    const at::Tensor x_TD = inputs() + n;
    const at::Tensor center_D = n == 0 ? at::zeros({kHidden}, at::kDouble) : mean_D;
    const at::Tensor square_now_C =
        (x_TD.to(at::kDouble) - center_D).matmul(weight_.t().to(at::kDouble)).square().mean(0);
    const at::Tensor mean_now_D = x_TD.to(at::kDouble).mean(0);
    const double earlier = n / 100.0;
    mean_D = n == 0 ? mean_now_D : (mean_D * earlier + mean_now_D) / (earlier + 1);
    square_C = (square_C * earlier + square_now_C) / (earlier + 1);
    step(x_TD);
  }
  const ops::NamedTensors after = state();
  EXPECT_TRUE(ops::find_tensor(after, "router_input_mean_LD", "")[1].allclose(mean_D, kSumError, kSumError));
  EXPECT_TRUE(ops::find_tensor(after, "logit_square_LC", "")[1].allclose(square_C, 1e-4, kSumError));
  EXPECT_EQ(ops::find_tensor(after, "normalization_steps", "").item<int64_t>(), 5);
}

TEST_F(ExpertNormalizationTest, ignores_a_skipped_step) {
  step(inputs());
  const ops::NamedTensors before = state();
  step(inputs() + 1, at::full({}, false, at::kBool));
  const ops::NamedTensors after = state();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].second.equal(after[i].second)) << i;
}

TEST_F(ExpertNormalizationTest, has_the_gradient_of_centered_inputs) {
  step(inputs());
  at::Tensor x_TD = inputs().requires_grad_(), weight_CD = weight_.detach().clone().requires_grad_();
  const at::Tensor grad_TC = at::randn({kTokens, kExperts});
  logits(0, x_TD, weight_CD).backward(grad_TC);

  const ops::NamedTensors after = state();
  const at::Tensor mean_D = ops::find_tensor(after, "router_input_mean_LD", "")[0].to(at::kFloat);
  const at::Tensor std_C = ops::find_tensor(after, "logit_square_LC", "")[0].add(1e-6).sqrt().to(at::kFloat);
  const at::Tensor scaled_TC = grad_TC / std_C;
  EXPECT_TRUE(weight_CD.grad().allclose(scaled_TC.t().matmul(x_TD.detach() - mean_D), 1e-4, 1e-2));
  EXPECT_TRUE(x_TD.grad().allclose(scaled_TC.matmul(weight_), 1e-4, 1e-4));
}

TEST(LogitSums, do_not_depend_on_the_division_into_micro_batches) {
  at::manual_seed(2);
  const at::Tensor z_TC = at::randn({64, 8}), x_TD = at::randn({64, 5});
  const at::Tensor whole = logit_sums(z_TC, x_TD, /*stride=*/4);
  at::Tensor parts = at::zeros_like(whole);
  for (int64_t begin = 0; begin < 64; begin += 16)
    parts += logit_sums(z_TC.narrow(0, begin, 16), x_TD.narrow(0, begin, 16), 4);
  EXPECT_TRUE(whole.equal(parts));
  EXPECT_EQ(whole.numel(), 8 + 1 + 8 + 5);
  EXPECT_TRUE(logit_sums(z_TC, {}, 4).equal(whole.narrow(0, 0, 9)));
}

double share(const at::Tensor& z_TC) {
  const at::Tensor sums = logit_sums(z_TC, {}, 1).to(at::kDouble).unsqueeze(0);
  return common_logit_share(sums, z_TC.size(1), z_TC.size(0)).item<double>();
}

TEST(CommonLogitShare, is_one_if_all_tokens_have_the_same_logits) {
  EXPECT_NEAR(share(at::arange(4).to(at::kFloat).expand({100, 4})), 1, kSumError);
}

TEST(CommonLogitShare, is_the_variance_of_the_means_over_all_variance) {
  at::manual_seed(3);
  const at::Tensor z_TC = at::randn({256, 8}) + at::randn({8});
  const at::Tensor c_TC = z_TC.to(at::kDouble) - z_TC.to(at::kDouble).mean(1, true);
  const double want = c_TC.mean(0).square().sum().item<double>() * 256 / c_TC.square().sum().item<double>();
  EXPECT_NEAR(share(z_TC), want, kSumError);
  EXPECT_NEAR(share(z_TC + at::randn({256, 1}) * 10), want, 1e-4);  // a token's mean over experts is left out
}

TEST(CommonLogitShare, is_zero_without_logits_that_differ) { EXPECT_EQ(share(at::ones({10, 4})), 0); }

}  // namespace
}  // namespace dtopp::moe::expert_normalization_test

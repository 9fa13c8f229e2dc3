#include <gtest/gtest.h>

#include "dtopp/ops/gemm/linear.h"
#include "dtopp/ops/route/route.h"
#include "tests/ops/reference.h"

namespace dtopp::ops::router_linear_test {
namespace {

at::Tensor magnitude(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.abs().to(at::kDouble), b.abs().to(at::kDouble));
}

at::Tensor exact_product(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.to(at::kDouble), b.to(at::kDouble));
}

// The error of exact products: sums of D numbers in fp32, 2^-24 of each summand, and of three parts.
double fp32_bound(int64_t terms) { return std::ldexp(static_cast<double>(terms) + 3, -24); }

double worst(const at::Tensor& result, const at::Tensor& exact, const at::Tensor& size) {
  return ((result - exact).abs() / size).max().item<double>();
}

TEST(RouterLinearInParts, loses_no_bit_of_the_weight) {
  at::manual_seed(1);
  // Weights range from 2^-60 to 2^60.
  const at::Tensor weight_ED = at::randn({64, 48}) * at::exp2(at::randint(-60, 61, {64, 48}).to(at::kFloat));
  const at::Tensor unit_TD = at::eye(48, at::kBFloat16);
  EXPECT_TRUE(at::equal(router_linear_in_parts(unit_TD, weight_ED), weight_ED.t()));
}

TEST(RouterLinearInParts, is_as_exact_as_fp32) {
  at::manual_seed(2);
  const at::Tensor x_TD = at::randn({700, 320}).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight_ED = (0.02 * at::randn({24, 320})).requires_grad_();
  const at::Tensor logits_TE = router_linear_in_parts(x_TD, weight_ED);
  EXPECT_EQ(logits_TE.scalar_type(), at::kFloat);
  EXPECT_LT(worst(logits_TE, exact_product(x_TD, weight_ED.t()), magnitude(x_TD, weight_ED.t())),
            fp32_bound(320));
  const at::Tensor grad_TE = 1e-3 * at::randn({700, 24});
  logits_TE.backward(grad_TE);
  EXPECT_LT(worst(weight_ED.grad(), exact_product(grad_TE.t(), x_TD), magnitude(grad_TE.t(), x_TD)),
            fp32_bound(700));
  // The gradient is rounded to bf16. Three products of parts are left out, each 2^-16 of a summand.
  const at::Tensor exact_x_TD = exact_product(grad_TE, weight_ED);
  const at::Tensor bound_TD =
      std::ldexp(1.0, -8) * exact_x_TD.abs() + 3 * std::ldexp(1.0, -16) * magnitude(grad_TE, weight_ED);
  EXPECT_EQ(x_TD.grad().scalar_type(), at::kBFloat16);
  EXPECT_LE(worst(x_TD.grad(), exact_x_TD, bound_TD), 1);
}

TEST(RouterLinearInParts, takes_no_token_and_one_expert) {
  const at::Tensor x_TD = at::empty({0, 8}, at::kBFloat16).requires_grad_();
  const at::Tensor weight_ED = at::ones({1, 8}).requires_grad_();
  router_linear_in_parts(x_TD, weight_ED).sum().backward();
  EXPECT_EQ(x_TD.grad().sizes(), x_TD.sizes());
  EXPECT_TRUE(at::equal(weight_ED.grad(), at::zeros({1, 8})));
}

// The largest change of a token's cumulative probabilities if its logits change by `bound`. z = theta (l -
// mean) / sigma changes by at most theta / sigma (2 + |z|) bound, with |z| <= sqrt(E), and cumulative
// probabilities change no more than z.
at::Tensor mass_bound(const at::Tensor& logits_TE, const at::Tensor& bound_T1) {
  const double most = 2 + std::sqrt(static_cast<double>(logits_TE.size(1)));
  const at::Tensor deviation_T1 = logits_TE.var(-1, /*unbiased=*/false, /*keepdim=*/true).sqrt();
  return (most * bound_T1 / deviation_T1).squeeze(1) + 1e-6;  // 1e-6: fp32's own sums of probabilities
}

// Whether a change below the bound could alter a token's selection: a cumulative probability is that close to
// p, or the probabilities of the last selected and the first other expert are.
at::Tensor is_tie(const at::Tensor& logits_TE, double threshold, const at::Tensor& bound_T) {
  const at::Tensor prob_TE = reference::probabilities(logits_TE, at::ones({}, at::kDouble), "fixed");
  const at::Tensor sorted_TE = std::get<0>(prob_TE.sort(-1, /*descending=*/true));
  const at::Tensor mass_TE = sorted_TE.cumsum(-1), bound_T1 = bound_T.unsqueeze(1);
  const at::Tensor at_threshold_T = ((mass_TE - threshold).abs() <= bound_T1).any(-1);
  const at::Tensor last_T1 = (mass_TE < threshold).sum(-1, /*keepdim=*/true);
  const at::Tensor gap_T1 = sorted_TE.gather(1, last_T1) - sorted_TE.gather(1, last_T1 + 1);
  return at_threshold_T.logical_or((gap_T1 <= bound_T1).squeeze(1));
}

TEST(RouterLinearInPartsSlow, a_million_tokens_choose_as_in_fp32_but_for_ties) {
  constexpr int64_t kTokens = 1 << 20, kChunk = 1 << 16, D = 48, E = 32;
  constexpr double kThreshold = 0.4;
  at::manual_seed(3);
  const at::Tensor weight_ED = 0.02 * at::randn({E, D});
  const at::Tensor scale = at::ones({}), threshold = at::full({}, kThreshold, at::kDouble);
  int64_t different = 0, ties = 0;
  for (int64_t done = 0; done < kTokens; done += kChunk) {
    const at::Tensor x_TD = at::randn({kChunk, D}).to(at::kBFloat16);
    const auto chosen = [&](const at::Tensor& logits_TE) {
      return route(logits_TE, scale, threshold, "fixed", 0, 0, true).gates_TE > 0;
    };
    const at::Tensor differs_T = (chosen(router_linear_in_parts(x_TD, weight_ED)) !=
                                  chosen(at::linear(x_TD.to(at::kFloat), weight_ED)))
                                     .any(-1);
    const at::Tensor bound_T1 = fp32_bound(D) * std::get<0>(magnitude(x_TD, weight_ED.t()).max(-1, true));
    const at::Tensor exact_TE = exact_product(x_TD, weight_ED.t());
    const at::Tensor is_tie_T = is_tie(exact_TE, kThreshold, 2 * mass_bound(exact_TE, bound_T1));
    EXPECT_FALSE(differs_T.logical_and(is_tie_T.logical_not()).any().item<bool>());
    different += differs_T.sum().item<int64_t>();
    ties += is_tie_T.sum().item<int64_t>();
  }
  // The bound distinguishes tokens, and real differences are far below it.
  EXPECT_LT(ties, kTokens / 10);
  EXPECT_LT(different, kTokens / 10'000);
  RecordProperty("ties", std::to_string(ties));
  RecordProperty("different", std::to_string(different));
}

TEST(RouterLinear, on_a_cpu_is_the_product_in_fp32_to_the_bit) {
  at::manual_seed(4);
  const at::Tensor x_TD = at::randn({50, 24}).to(at::kBFloat16), weight_ED = at::randn({6, 24});
  const at::Tensor grad_TE = at::randn({50, 6});
  const auto run = [&](auto product) {
    const at::Tensor x = x_TD.detach().clone().requires_grad_(),
                     w = weight_ED.detach().clone().requires_grad_();
    const at::Tensor y = product(x, w);
    y.backward(grad_TE);
    return std::vector<at::Tensor>{y.detach(), x.grad(), w.grad()};
  };
  const auto ours = run([](const at::Tensor& x, const at::Tensor& w) { return router_linear(x, w); });
  const auto wide =
      run([](const at::Tensor& x, const at::Tensor& w) { return at::linear(x.to(at::kFloat), w); });
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(at::equal(ours[i], wide[i])) << i;
}

TEST(RouterLinear, refuses_what_does_not_fit) {
  EXPECT_THROW(router_linear(at::ones({3, 4}), at::ones({5, 3})), c10::Error);
  EXPECT_THROW(router_linear(at::ones({3, 4}), at::ones({5, 4}, at::kDouble)), c10::Error);
  EXPECT_THROW(router_linear_in_parts(at::ones({3, 4}), at::ones({5, 4})), c10::Error);
}

}  // namespace
}  // namespace dtopp::ops::router_linear_test

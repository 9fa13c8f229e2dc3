#include "dtopp/ops/route/route.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "tests/ops/reference.h"

namespace dtopp::ops {
namespace {

at::Tensor row(std::vector<float> values) {
  const int64_t experts = static_cast<int64_t>(values.size());
  return at::tensor(values).view({1, experts});
}

struct Options {
  double threshold = 0.5;
  std::string normalization = "none";
  int64_t top_k = 0;
  int64_t max_experts = 0;
  bool renormalize = true;
};

RouteOutput run(const at::Tensor& logits_TE, const Options& options = {}) {
  return route(logits_TE, at::tensor(1.0F).squeeze(), at::tensor(options.threshold, at::kDouble).squeeze(),
               options.normalization, options.top_k, options.max_experts, options.renormalize);
}

std::vector<int64_t> chosen(const RouteOutput& out, int64_t token = 0) {
  const at::Tensor index = at::nonzero(out.gates_TE[token]).flatten().contiguous();
  return {index.const_data_ptr<int64_t>(), index.const_data_ptr<int64_t>() + index.numel()};
}

int64_t active(const at::Tensor& logits_TE, const Options& options) {
  const RouteOutput out = run(logits_TE, options);
  return (out.active_histogram * at::arange(logits_TE.size(1) + 1)).sum().item<int64_t>();
}

// Logits whose softmax gives these probabilities.
at::Tensor logits_of(const std::vector<float>& prob) { return row(prob).log(); }

std::vector<float> any_logits() {
  const auto coarse =
      rc::gen::map(rc::gen::inRange(-40, 41), [](int n) { return static_cast<float>(n) / 8; });
  return *rc::gen::nonEmpty(rc::gen::container<std::vector<float>>(coarse));
}

TEST(Route, takes_experts_while_the_probability_before_them_is_below_the_threshold) {
  const at::Tensor logits = logits_of({0.125F, 0.5F, 0.25F, 0.125F});
  EXPECT_THAT(chosen(run(logits, {.threshold = 0.49})), testing::ElementsAre(1));
  EXPECT_THAT(chosen(run(logits, {.threshold = 0.51})), testing::ElementsAre(1, 2));
  EXPECT_THAT(chosen(run(logits, {.threshold = 0.76})), testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(chosen(run(logits, {.threshold = 0.88})), testing::ElementsAre(0, 1, 2, 3));
}

TEST(Route, stops_exactly_where_the_threshold_is_reached) {
  // Four equal logits have probabilities of exactly 1/4.
  EXPECT_THAT(chosen(run(at::zeros({1, 4}), {.threshold = 0.25})), testing::ElementsAre(0));
  EXPECT_THAT(chosen(run(at::zeros({1, 4}), {.threshold = 0.5})), testing::ElementsAre(0, 1));
  EXPECT_THAT(chosen(run(at::zeros({1, 4}), {.threshold = 0.5 + 1e-15})), testing::ElementsAre(0, 1, 2));
}

TEST(Route, breaks_ties_by_the_lowest_index) {
  for (const int64_t experts : {3, 7, 16, 17, 33, 64, 65}) {
    const at::Tensor logits = at::full({1, experts}, 0.7);
    for (const char* normalization : {"none", "fixed", "dynamic"}) {
      const auto two = chosen(run(logits, {.normalization = normalization, .top_k = 2}));
      EXPECT_THAT(two, testing::ElementsAre(0, 1)) << experts << normalization;
    }
  }
  EXPECT_THAT(chosen(run(row({1, 3, 2, 3, 2, 3}), {.top_k = 4})), testing::ElementsAre(1, 2, 3, 5));
}

TEST(Route, equal_logits_have_zero_deviation_and_finite_gradients) {
  const at::Tensor logits = at::full({2, 5}, 3.0F).requires_grad_();
  const RouteOutput out = run(logits, {.threshold = 0.3, .normalization = "dynamic"});
  EXPECT_THAT(chosen(out), testing::ElementsAre(0, 1));
  EXPECT_TRUE(at::equal(out.gates_TE[0].narrow(0, 0, 2), at::full({2}, 0.5F)));
  (out.gates_TE.square().sum() + out.entropy + out.router_z).backward();
  EXPECT_TRUE(at::isfinite(logits.grad()).all().item<bool>());
}

TEST(Route, one_expert_always_has_gate_one) {
  const RouteOutput out = run(at::randn({9, 1}), {.normalization = "dynamic"});
  EXPECT_TRUE(at::equal(out.gates_TE, at::ones({9, 1})));
  EXPECT_EQ(out.tokens_per_expert_E.item<int64_t>(), 9);
  EXPECT_EQ(out.entropy.item<float>(), 0.0F);
}

TEST(Route, without_renormalization_gates_are_the_probabilities) {
  const RouteOutput out = run(logits_of({0.5F, 0.25F, 0.25F}), {.threshold = 0.6, .renormalize = false});
  EXPECT_LT(reference::error(out.gates_TE, row({0.5F, 0.25F, 0})), 1e-6);
  const RouteOutput normal = run(logits_of({0.5F, 0.25F, 0.25F}), {.threshold = 0.6});
  EXPECT_LT(reference::error(normal.gates_TE, row({2.0F / 3, 1.0F / 3, 0})), 1e-6);
}

TEST(Route, counts_a_chosen_expert_whose_probability_underflows) {
  const RouteOutput out = run(row({0, -300, -200}), {.top_k = 2});
  EXPECT_TRUE(at::equal(out.tokens_per_expert_E, at::tensor({1, 1, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(out.gates_TE, row({1, 0, 0})));
}

TEST(Route, an_impossible_logit_is_left_alone) {
  const float never = -std::numeric_limits<float>::infinity();
  const at::Tensor logits = row({never, 0, 0}).requires_grad_();
  const RouteOutput out = run(logits, {.threshold = 0.9});
  EXPECT_THAT(chosen(out), testing::ElementsAre(1, 2));
  (out.gates_TE.square().sum() + out.entropy + out.mean_prob_E.square().sum()).backward();
  EXPECT_TRUE(at::isfinite(logits.grad()).all().item<bool>());
}

TEST(Route, extreme_thresholds_take_one_expert_or_all) {
  const at::Tensor logits = at::randn({20, 8});
  EXPECT_EQ(active(logits, {.threshold = 0}), 20);
  EXPECT_EQ(active(logits, {.threshold = -1}), 20);
  EXPECT_EQ(active(logits, {.threshold = 1.5}), 160);
}

TEST(Route, statistics_of_many_tokens_are_exact_integers_and_means) {
  const at::Tensor logits = at::randn({1000, 24});
  const RouteOutput out = run(logits, {.threshold = 0.4, .normalization = "dynamic"});
  const at::Tensor set = out.gates_TE != 0;
  EXPECT_TRUE(at::equal(out.tokens_per_expert_E, set.sum(0)));
  EXPECT_TRUE(at::equal(out.active_histogram, at::bincount(set.sum(1), {}, 25)));
  const at::Tensor prob =
      reference::probabilities(logits.to(at::kDouble), at::ones({}, at::kDouble), "dynamic");
  EXPECT_LT(reference::error(out.mean_prob_E, prob.mean(0)), 1e-6);
  EXPECT_LT(reference::error(out.entropy, -(prob * prob.log()).sum(1).mean()), 1e-6);
  EXPECT_LT(reference::error(out.router_z, logits.to(at::kDouble).logsumexp(-1).square().mean()), 1e-6);
}

RC_GTEST_PROP(RouteProperty, chooses_what_a_sort_of_its_probabilities_chooses, ()) {
  const at::Tensor logits = row(any_logits());
  const int64_t experts = logits.size(1);
  const std::string normalization = *rc::gen::element<std::string>("none", "fixed", "dynamic");
  const double threshold = *rc::gen::inRange(1, 1000) / 1000.0;
  const int64_t top_k = *rc::gen::inRange<int64_t>(0, experts + 1);
  const int64_t cap = *rc::gen::inRange<int64_t>(0, experts + 2);
  // All experts without renormalization: the op's own float probabilities, so that no rounding changes the
  // set.
  const at::Tensor prob =
      run(logits, {.normalization = normalization, .top_k = experts, .renormalize = false}).gates_TE[0];
  auto expected = reference::chosen_experts(prob, threshold, top_k, cap);
  std::sort(expected.begin(), expected.end());
  RC_ASSERT(chosen(run(logits, {threshold, normalization, top_k, cap})) == expected);
}

RC_GTEST_PROP(RouteProperty, is_the_smallest_set_reaching_the_threshold, ()) {
  const at::Tensor logits = row(any_logits());
  const double threshold = *rc::gen::inRange(1, 1000) / 1000.0;
  const at::Tensor gates =
      run(logits, {.threshold = threshold, .renormalize = false}).gates_TE[0].to(at::kDouble);
  const double sum = gates.sum().item<double>();
  const int64_t size = (gates != 0).sum().item<int64_t>();
  RC_ASSERT(size >= 1);
  RC_ASSERT(sum >= threshold || size == logits.size(1));
  const double least = gates.masked_select(gates != 0).min().item<double>();
  if (size > 1) RC_ASSERT(sum - least < threshold + 1e-12);
}

RC_GTEST_PROP(RouteProperty, takes_more_experts_for_a_higher_threshold, ()) {
  const at::Tensor logits = row(any_logits());
  const double low = *rc::gen::inRange(1, 1000) / 1000.0, high = *rc::gen::inRange(1, 1000) / 1000.0;
  const auto few = chosen(run(logits, {.threshold = std::min(low, high)}));
  const auto many = chosen(run(logits, {.threshold = std::max(low, high)}));
  RC_ASSERT(std::includes(many.begin(), many.end(), few.begin(), few.end()));
}

RC_GTEST_PROP(RouteProperty, gates_add_up_to_one_and_respect_the_cap, ()) {
  const at::Tensor logits = row(any_logits());
  const int64_t cap = *rc::gen::inRange<int64_t>(1, logits.size(1) + 1);
  const RouteOutput out = run(logits, {.threshold = 0.95, .normalization = "dynamic", .max_experts = cap});
  RC_ASSERT(std::abs(out.gates_TE.sum().item<double>() - 1) < 1e-6);
  RC_ASSERT(static_cast<int64_t>(chosen(out).size()) <= cap);
}

at::Tensor scale() { return at::scalar_tensor(1.3, at::kFloat); }

RouteOutput routed(const at::Tensor& logits_TE, double p, bool renormalize) {
  return route(logits_TE, scale(), at::scalar_tensor(p, at::kDouble), "dynamic", 0, 0, renormalize);
}

at::Tensor gradient(const at::Tensor& output, const at::Tensor& input, const at::Tensor& grad) {
  return torch::autograd::grad({output}, {input}, {grad}).at(0);
}

TEST(RouteSelected, gives_what_route_gave_for_its_own_selection) {
  at::manual_seed(3);
  for (const bool renormalize : {true, false}) {
    const at::Tensor logits_TE = at::randn({50, 8}).requires_grad_();
    const RouteOutput first = routed(logits_TE, 0.6, renormalize);
    const at::Tensor grad_TE = at::randn({50, 8});
    const at::Tensor expected = gradient(first.gates_TE, logits_TE, grad_TE);
    const RouteOutput again =
        route_selected(logits_TE, scale(), first.gates_TE.gt(0), "dynamic", renormalize);
    EXPECT_LT(reference::error(again.gates_TE, first.gates_TE), 1e-6);
    EXPECT_LT(reference::error(gradient(again.gates_TE, logits_TE, grad_TE), expected), 1e-5);
    EXPECT_TRUE(at::equal(again.tokens_per_expert_E, first.tokens_per_expert_E));
    EXPECT_TRUE(at::equal(again.active_histogram, first.active_histogram));
    EXPECT_TRUE(at::equal(again.mean_prob_E, first.mean_prob_E));
    EXPECT_TRUE(at::equal(again.entropy, first.entropy));
    EXPECT_TRUE(at::equal(again.router_z, first.router_z));
  }
}

// The reference is twenty lines of ATen in double. Selections include none and all experts of a token.
TEST(RouteSelected, matches_double_precision_for_any_selection) {
  at::manual_seed(4);
  for (const bool renormalize : {true, false}) {
    const at::Tensor logits_TE = at::randn({40, 6}).requires_grad_();
    const at::Tensor exact_TE = logits_TE.detach().to(at::kDouble).requires_grad_();
    at::Tensor routing_map_TE = at::rand({40, 6}).gt(0.5);
    routing_map_TE[0].fill_(false);
    routing_map_TE[1].fill_(true);
    const RouteOutput out = route_selected(logits_TE, scale(), routing_map_TE, "dynamic", renormalize);
    at::Tensor expected = reference::probabilities(exact_TE, at::scalar_tensor(1.3, at::kDouble), "dynamic") *
                          routing_map_TE.to(at::kDouble);
    const at::Tensor some = routing_map_TE.any(1);
    if (renormalize) expected = expected / at::where(some.unsqueeze(1), expected.sum(1, true), 1.0);
    const at::Tensor grad_TE = at::randn({40, 6});
    EXPECT_LT(reference::error(out.gates_TE, expected), 1e-6);
    EXPECT_LT(reference::error(gradient(out.gates_TE, logits_TE, grad_TE),
                               gradient(expected, exact_TE, grad_TE.to(at::kDouble))),
              1e-5);
    EXPECT_TRUE(at::equal(out.tokens_per_expert_E, routing_map_TE.sum(0)));
    EXPECT_EQ(out.active_histogram.sum().item<int64_t>(), 40);
    EXPECT_EQ(out.active_histogram[0].item<int64_t>(), 40 - some.sum().item<int64_t>());
  }
}

TEST(RouteSelected, a_selection_that_does_not_fit_is_refused) {
  const at::Tensor logits_TE = at::randn({4, 6});
  for (const at::Tensor& wrong : {at::ones({4, 5}, at::kBool), at::ones({4, 6}, at::kByte)})
    EXPECT_THROW(route_selected(logits_TE, scale(), wrong, "none", true), c10::Error);
}

}  // namespace

}  // namespace dtopp::ops

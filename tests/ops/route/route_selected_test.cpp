#include "dtopp/ops/route/route_selected.h"

#include <gtest/gtest.h>

#include "tests/ops/reference.h"

namespace dtopp::ops {
namespace {

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

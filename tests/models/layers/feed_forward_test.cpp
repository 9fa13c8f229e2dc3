#include "dtopp/models/layers/feed_forward.h"

#include <string>
#include <unordered_map>

#include <gtest/gtest.h>

#include "dtopp/moe/routers/make_router.h"

namespace dtopp::models {
namespace {

// Two shared experts are two more experts that every token selects with gate 1.
TEST(FeedForward, shared_experts_are_experts_that_every_token_selects) {
  constexpr int64_t T = 20, D = 6, F = 5, E = 4, S = 2;
  config::RunConfig config;
  config.model.num_layers = 1;
  config.model.num_experts = E;
  config.model.shared_experts = S;
  config.routing.method = config::RoutingMethod::kTopK;
  config.routing.experts = {2};
  config.routing.normalization = config::Normalization::kNone;
  const at::Tensor gate_up_EGD = at::randn({S + E, 2 * F, D}), down_EDF = at::randn({S + E, D, F});
  const at::Tensor shared_gate_up_SGD = gate_up_EGD.narrow(0, 0, S);
  const std::unordered_map<std::string, at::Tensor> tensors = {
      {"gate.weight", at::randn({E, D})},
      {"shared_experts.gate_up_proj.weight",
       at::cat({shared_gate_up_SGD.narrow(1, 0, F).reshape({S * F, D}),
                shared_gate_up_SGD.narrow(1, F, F).reshape({S * F, D})})},
      {"shared_experts.down_proj.weight", down_EDF.narrow(0, 0, S).permute({1, 0, 2}).reshape({D, S * F})},
      {"experts.gate_up_proj", gate_up_EGD.narrow(0, S, E)},
      {"experts.down_proj", down_EDF.narrow(0, S, E)}};
  const FeedForwardWeights weights = feed_forward_weights(
      config.model, config.routing, "", [&](const std::string& name) { return tensors.at(name); });
  const moe::Routing routing{moe::make_router(config, at::kCPU)};
  const at::Tensor x_TD = at::randn({T, D});
  std::vector<ops::RouteOutput> routed;
  const at::Tensor y_TD = feed_forward(x_TD, weights, 0, routing, routed);
  const at::Tensor gates_TE = at::cat({at::ones({T, S}), routed.at(0).gates_TE}, 1);
  EXPECT_TRUE(y_TD.allclose(ops::moe_ffn(x_TD, gates_TE, gate_up_EGD, down_EDF), 1e-4, 1e-4));
  EXPECT_EQ(routed[0].tokens_per_expert_E.sum().item<int64_t>(), 2 * T);
}

}  // namespace
}  // namespace dtopp::models

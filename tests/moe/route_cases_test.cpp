// Runs the routers on the cases of the routing rule (tests/conformance/README.md). The layer's part of the
// rule is here, not in the operator: gates of length 1 and zero experts.
#include "tests/ops/route/route_cases.h"

#include <map>
#include <set>

#include "dtopp/moe/expert_layer.h"
#include "dtopp/moe/make_router.h"

namespace dtopp::moe::route_cases_test {
namespace {

using config::RoutingMethod;
using ops::route_cases::Case;

// The method that has this rule, if one has.
std::optional<RoutingMethod> method_of(const Case& one) {
  const bool normalizes = one.at("normalization") != "none", takes_top_k = one.at("top_k") != 0;
  const std::string gate = one.at("gate"), bias_on = one.at("bias").is_null() ? "nothing" : one.at("bias_on");
  if (gate == "relu" && !normalizes) return RoutingMethod::kRelu;
  if (gate == "sigmoid") return RoutingMethod::kExpertThreshold;
  if (gate != "probability" || (takes_top_k && bias_on == "nothing" && one.at("max_experts") != 0)) return {};
  if (bias_on == "nothing") return takes_top_k ? RoutingMethod::kTopK : RoutingMethod::kTopP;
  if (bias_on == "logit" && !takes_top_k) return RoutingMethod::kDTopPBias;
  if (bias_on == (one.at("zero_experts") != 0 ? "probability" : "score") && takes_top_k)
    return RoutingMethod::kTopKBias;
  return {};
}

// A layer's result for the logits of a case.
ops::RouteOutput run(const Case& one, RoutingMethod method) {
  config::RunConfig config;
  const int64_t columns = one.at("columns"), zero_experts = one.at("zero_experts"), top_k = one.at("top_k");
  config.model.num_layers = 1;
  config.model.hidden_size = columns;
  config.model.num_experts = columns - zero_experts;
  config.model.zero_experts = zero_experts;
  config.routing.method = method;
  config.routing.experts = {static_cast<double>(std::max<int64_t>(top_k, 1))};
  config.routing.threshold = one.at("threshold");
  config.routing.max_experts = zero_experts > 0 && top_k > 0 ? top_k : one.at("max_experts").get<int64_t>();
  const std::map<std::string, config::Normalization> normalizations = {
      {"none", config::Normalization::kNone},
      {"fixed", config::Normalization::kFixed},
      {"dynamic", config::Normalization::kDynamic}};
  config.routing.normalization = normalizations.at(one.at("normalization"));
  config.routing.renormalize = one.at("renormalize") == "l2"   ? config::Renormalize::kL2
                               : one.at("renormalize") == true ? config::Renormalize::kSum
                                                               : config::Renormalize::kNo;
  config.routing.cut_decay = 0.5;
  const std::shared_ptr<Router> router = make_router(config, at::kCPU);
  ops::NamedTensors state = router->state();
  for (auto& [name, value] : state) {
    const bool has_cut = one.at("cut").is_array() && one.at("cut").at(0).is_number();
    if (name == "bias_LE")
      value = ops::route_cases::tensor_of(one.at("bias"), {1, columns}, at::kDouble)
                  .narrow(1, 0, columns - zero_experts);
    if (name == "cut_LE" && has_cut)
      value = ops::route_cases::tensor_of(one.at("cut"), {1, columns}, at::kDouble);
    if (name == "cut_steps" && has_cut) value = at::full_like(value, 2000);  // 1 - 0.5^2000 = 1
  }
  router->load_state(state);
  const auto tokens = static_cast<int64_t>(one.at("logits").size());
  at::Tensor logits_TE = ops::route_cases::tensor_of(one.at("logits"), {tokens, columns}, at::kDouble);
  // This method adds its bias to sigmoid(z) = exp(s).
  if (method == RoutingMethod::kTopKBias && zero_experts == 0)
    logits_TE = logits_TE - logits_TE.exp().neg().log1p();
  ExpertLayerWeights weights;
  weights.router_ED = at::eye(columns);
  weights.router_scale = at::full({}, one.at("scale").get<double>());
  return route_tokens(logits_TE.to(at::kFloat), weights, /*layer=*/0, routing_by(router));
}

TEST(RouteCases, routers_have_the_results_of_double_precision) {
  std::set<std::string> without_method;
  for (const Case& one : ops::route_cases::all()) {
    SCOPED_TRACE(one.at("name"));
    const auto method = method_of(one);
    if (!method) {
      without_method.insert(one.at("name"));
      continue;
    }
    const ops::RouteOutput out = run(one, *method);
    const Case &expected = one.at("expected"),
               &counted = out.zero_gate_T1.defined() ? expected.at("without_zero_experts") : expected;
    const int64_t columns = one.at("columns"), experts = out.gates_TE.size(1), tokens = out.gates_TE.size(0);
    const at::Tensor gates_TE =
        ops::route_cases::tensor_of(expected.at("gates"), {tokens, columns}, at::kDouble);
    EXPECT_TRUE(out.gates_TE.ne(0).equal(gates_TE.narrow(1, 0, experts).ne(0)));
    EXPECT_LT(ops::reference::error(out.gates_TE, gates_TE.narrow(1, 0, experts)), 1e-5);
    ops::route_cases::expect_counts(out, counted);
    ops::route_cases::expect_near(out.mean_prob_E, counted.at("mean_prob"));
    ops::route_cases::expect_near(out.entropy, expected.at("entropy"));
    if (out.zero_gate_T1.defined()) ops::route_cases::expect_near(out.zero_gate_T1, counted.at("zero_gate"));
    if (*method != RoutingMethod::kTopKBias || columns > experts)  // else of z, not of the case's logits
      ops::route_cases::expect_near(out.router_z, expected.at("router_z"));
  }
  EXPECT_EQ(without_method, (std::set<std::string>{"bias_on_logit_top_k", "bias_on_probability",
                                                   "bias_on_score", "relu_dynamic", "top_k_max_experts"}));
}

}  // namespace
}  // namespace dtopp::moe::route_cases_test

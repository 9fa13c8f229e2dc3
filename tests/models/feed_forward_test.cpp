#include "dtopp/models/feed_forward.h"

#include <map>
#include <string>
#include <unordered_map>

#include <gtest/gtest.h>

#include <ATen/record_function.h>

#include "dtopp/models/batch.h"
#include "dtopp/models/batch_losses.h"
#include "dtopp/models/make_model.h"
#include "dtopp/moe/make_router.h"

namespace dtopp::models {

// Tests parts of a block that the backward pass runs again, alone and in both types of model.

namespace {

using config::Recompute;

at::Tensor leaf(const at::Tensor& tensor) { return tensor.detach().clone().requires_grad_(); }

// The calls of each operator in this thread since it was cleared.
thread_local std::map<std::string, int> calls;

class CountedCalls {
 public:
  CountedCalls() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(count))) { calls.clear(); }
  ~CountedCalls() { at::removeCallback(handle_); }

 private:
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& call) {
    ++calls[call.name()];
    return nullptr;
  }
  at::CallbackHandle handle_;
};

TEST(RunPart, gives_the_same_gradients_from_a_second_run) {
  const at::Tensor x0 = at::randn({5, 3}), y0 = at::randn({5, 3}), weight0 = at::randn({3, 3});
  std::vector<std::vector<at::Tensor>> results;
  for (const bool recompute : {false, true}) {
    const at::Tensor x = leaf(x0), y = leaf(y0), weight = leaf(weight0);
    int runs = 0;
    const auto part = [&runs, weight](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
      ++runs;
      const at::Tensor sum = in[0] + in[0].matmul(weight).tanh() * in[1];
      return {sum, sum.exp()};
    };
    const std::vector<at::Tensor> out = run_part(recompute, part, {x, y});
    (out[0].square().sum() + out[1].sum()).backward();
    EXPECT_EQ(runs, recompute ? 2 : 1);
    results.push_back({out[0], out[1], x.grad(), y.grad(), weight.grad()});
  }
  for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(results[0][i].equal(results[1][i])) << i;
}

TEST(RunPart, gives_a_parameter_its_gradient_if_no_input_has_one) {
  const at::Tensor weight = leaf(at::randn({3}));
  const auto part = [weight](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {in[0] * weight};
  };
  run_part(true, part, {at::ones({3})})[0].sum().backward();
  EXPECT_TRUE(weight.grad().equal(at::ones({3})));
}

TEST(RunPart, passes_on_an_error_of_the_second_run) {
  int runs = 0;
  const auto part = [&runs](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    if (++runs == 2) throw std::length_error("second run");
    return {in[0] * 2};
  };
  const at::Tensor y = run_part(true, part, {leaf(at::ones({3}))})[0].sum();
  EXPECT_THROW(y.backward(), std::length_error);
}

config::RunConfig small(config::ModelType type) {
  config::RunConfig config;
  config.model.type = type;
  config.model.hidden_size = 16;
  config.model.num_layers = 3;
  config.model.num_heads = 2;
  config.model.ffn_hidden_size = 8;
  config.model.num_experts = 4;
  config.model.vocab_size = 32;
  config.model.sequence_length = 12;
  config.model.image_size = 4;
  config.model.channels = 3;
  config.model.patch_size = 1;
  config.model.num_classes = 5;
  config.routing.experts = {2};
  config.loss.router_z = 0.01;
  config.training.precision = config::Precision::kFp32;
  config.training.global_batch_size = config.training.micro_batch_size = 3;
  return config;
}

Batch batch_of(const config::ModelConfig& model) {
  if (model.type == config::ModelType::kLanguageModel)
    return {3, {{"tokens", at::randint(0, model.vocab_size, {3, model.sequence_length + 1}, at::kLong)}}};
  const at::Tensor images = at::randn({3, model.channels, model.image_size, model.image_size});
  return {
      3, {{"x0", images}, {"noise", at::randn_like(images)}, {"t", at::rand({3})}, {"class", at::arange(3)}}};
}

// Losses, counts and gradients of a forward and a backward pass.
std::vector<at::Tensor> run_model(const config::RunConfig& config, Recompute recompute) {
  at::manual_seed(3);
  const Model model = make_model(config);
  std::map<std::string, at::Tensor> tensors;
  for (const parameters::ParameterSpec& spec : model.parameters) {
    const bool bf16 = config.training.precision == config::Precision::kBf16 && spec.compute_precision();
    tensors[spec.name] = leaf((at::randn(spec.shape) / 4).to(bf16 ? at::kBFloat16 : at::kFloat));
  }
  moe::Routing routing;
  if (!config.model.is_dense()) routing.router = moe::make_router(config, at::kCPU);
  routing.training = true;
  routing.recompute = recompute;
  const LossFunction losses = model.bind([&](const std::string& name) { return tensors.at(name); });
  const Batch batch = batch_of(config.model);

  const CountedCalls counted;
  const BatchLosses result = losses(batch, routing);
  result.total.backward();
  std::vector<at::Tensor> all = {result.total.detach()};
  for (const auto& [name, value] : result.values) all.push_back(value);
  if (result.statistics.defined()) all.push_back(result.statistics);
  if (!config.model.is_dense()) all.push_back(result.activations.histogram());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(tensor.grad().defined()) << name;
    all.push_back(tensor.grad());
  }
  return all;
}

void expect_the_same_bits(const config::RunConfig& config) {
  const std::vector<at::Tensor> expected = run_model(config, Recompute::kNone);
  for (const Recompute recompute : {Recompute::kMoe, Recompute::kLayer}) {
    const std::vector<at::Tensor> results = run_model(config, recompute);
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(results[i].equal(expected[i])) << i;
  }
}

constexpr std::array kTypes = {config::ModelType::kLanguageModel, config::ModelType::kDiffusionTransformer};

TEST(Recompute, changes_no_bit_with_any_router) {
  for (const config::ModelType type : kTypes) {
    for (const config::RoutingMethod method :
         {config::RoutingMethod::kTopK, config::RoutingMethod::kTopKBias, config::RoutingMethod::kTopP,
          config::RoutingMethod::kDTopP, config::RoutingMethod::kDTopPBias, config::RoutingMethod::kRelu,
          config::RoutingMethod::kExpertThreshold, config::RoutingMethod::kHash}) {
      if (type != config::ModelType::kLanguageModel && !config::has_logits(method)) continue;
      for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(type) << " " << static_cast<int>(method) << " "
                                        << static_cast<int>(precision));
        config::RunConfig config = small(type);
        config.routing.method = method;
        if (method == config::RoutingMethod::kTopKBias || config::may_select_none(method))
          config.routing.normalization = config::Normalization::kNone;
        if (config::may_select_none(method)) config.routing.renormalize = config::Renormalize::kNo;
        config.training.precision = precision;
        expect_the_same_bits(config);
      }
    }
  }
}

TEST(Recompute, changes_no_bit_of_other_models) {
  for (const config::ModelType type : kTypes) {
    SCOPED_TRACE(static_cast<int>(type));
    config::RunConfig dense = small(type), variant = small(type);
    dense.model.num_experts = 1;
    expect_the_same_bits(dense);
    variant.model.shared_experts = 1;
    variant.loss.router_z_on = config::RouterZOn::kNormalized;
    variant.model.norm = config::NormType::kRms;
    variant.model.attention_window = 5;
    variant.model.tie_embeddings = false;
    variant.model.position = config::Position::kSincos;
    variant.model.shared_gate = true;
    variant.model.qkv_bias = type == config::ModelType::kLanguageModel;
    variant.model.qk_norm = config::QkNorm::kNone;
    expect_the_same_bits(variant);
  }
}

TEST(Recompute, routes_and_counts_once_and_repeats_what_was_not_stored) {
  for (const config::ModelType type : kTypes) {
    SCOPED_TRACE(static_cast<int>(type));
    const config::RunConfig config = small(type);
    const int layers = 3;
    std::map<Recompute, std::map<std::string, int>> counts;
    for (const Recompute recompute : {Recompute::kNone, Recompute::kMoe, Recompute::kLayer}) {
      run_model(config, recompute);
      counts[recompute] = calls;
    }
    // aten::linear is the router's product, in fp32. The autograd kernel of an operator may call its name
    // again.
    for (const char* once : {"dtopp::route", "dtopp::route_backward", "dtopp::cumulative_prob_histogram",
                             "dtopp::moe_ffn_forward", "aten::linear"}) {
      EXPECT_GE(counts[Recompute::kNone][once], layers) << once;
      EXPECT_EQ(counts[Recompute::kMoe][once], counts[Recompute::kNone][once]) << once;
      EXPECT_EQ(counts[Recompute::kLayer][once], counts[Recompute::kNone][once]) << once;
    }
    const auto count = [&](Recompute recompute, const char* name) { return counts[recompute][name]; };
    const char *first_product = "dtopp::moe_ffn_pre_activations", *q_and_k = "dtopp::norm_rotary_forward";
    EXPECT_EQ(count(Recompute::kNone, first_product), 0);
    EXPECT_EQ(count(Recompute::kMoe, first_product), layers);
    EXPECT_EQ(count(Recompute::kLayer, first_product), layers);
    EXPECT_EQ(count(Recompute::kNone, q_and_k), 2 * layers);
    EXPECT_EQ(count(Recompute::kMoe, q_and_k), 2 * layers);
    EXPECT_EQ(count(Recompute::kLayer, q_and_k), 4 * layers);
  }
}

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
      config.model, config.routing, "", 0, [&](const std::string& name) { return tensors.at(name); });
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

#include "dtopp/inference/generator.h"

#include <map>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "dtopp/inference/expert_budget.h"
#include "dtopp/moe/make_router.h"
#include "dtopp/ops/gemm/linear.h"
#include "tests/eval/tiny_model.h"

namespace dtopp::inference {
namespace {

// Counts how often each id is drawn while `uniform` runs through [0, 1).
std::vector<int> draws(const std::vector<double>& probabilities, double temperature, double top_p,
                       int count) {
  const at::Tensor logits_V = at::tensor(probabilities, at::kDouble).log().to(at::kFloat);
  std::vector<int> drawn(probabilities.size());
  for (int i = 0; i < count; ++i) ++drawn.at(sample_token(logits_V, temperature, top_p, (i + 0.5) / count));
  return drawn;
}

TEST(SampleToken, draws_each_id_as_often_as_it_is_likely) {
  EXPECT_EQ(draws({0.1, 0.6, 0.3}, 1, 1, 1000), (std::vector<int>{100, 600, 300}));
}

TEST(SampleToken, a_low_temperature_sharpens) {
  // p^2 / sum of p^2
  EXPECT_EQ(draws({0.25, 0.5, 0.25}, 0.5, 1, 600), (std::vector<int>{100, 400, 100}));
}

TEST(SampleToken, top_p_keeps_the_likeliest_that_reach_it) {
  EXPECT_EQ(draws({0.1, 0.6, 0.3}, 1, 0.6, 900), (std::vector<int>{0, 900, 0}));
  EXPECT_EQ(draws({0.1, 0.6, 0.3}, 1, 0.61, 900), (std::vector<int>{0, 600, 300}));
  EXPECT_EQ(draws({0.1, 0.6, 0.3}, 1, 0, 900), (std::vector<int>{0, 900, 0}));
}

TEST(SampleToken, equal_ids_are_taken_in_their_order) {
  EXPECT_EQ(draws({0.25, 0.25, 0.25, 0.25}, 1, 0.5, 100), (std::vector<int>{50, 50, 0, 0}));
}

// Everything that a step returns for one sequence, over its steps.
struct Generated {
  std::vector<int32_t> ids;
  std::vector<double> experts, log_probs;
  bool operator==(const Generated&) const = default;

  void add(const GeneratedToken& token) {
    ids.push_back(token.id);
    experts.insert(experts.end(), token.input_experts.begin(), token.input_experts.end());
    for (const TokenScore& score : token.scores) {
      log_probs.push_back(score.log_prob);
      for (const auto& [id, log_prob] : score.likeliest) log_probs.push_back(log_prob);
    }
  }
};

Generated alone(const InferenceModel& model, const SequenceInput& input) {
  Generation generation(model);
  generation.add(input);
  Generated generated;
  for (auto tokens = generation.step(); !tokens.empty(); tokens = generation.step()) generated.add(tokens[0]);
  return generated;
}

std::vector<SequenceInput> random_inputs(const InferenceModel& model, std::mt19937& random) {
  std::vector<std::shared_ptr<moe::Router>> routers = {nullptr};
  if (model.routing.router) {
    const at::Tensor tokens_BL = at::randint(0, model.config.model.vocab_size, {4, 50}, at::kLong);
    for (const double target : {1.0, 3.0})
      routers.push_back(solve_thresholds(model, tokens_BL, target).router);
  }
  const auto below = [&](int64_t count) { return static_cast<int64_t>(random() % count); };
  std::vector<SequenceInput> inputs;
  for (uint64_t i = 0; i < 24; ++i) {
    SequenceInput& input = inputs.emplace_back();
    for (int64_t length = below(70) + 1; length > 0; --length)
      input.ids.push_back(static_cast<int32_t>(below(model.config.model.vocab_size)));
    input.max_tokens = below(20) + 1;
    input.sampling = {below(3) * 0.7, 0.5 + 0.25 * static_cast<double>(below(3)), random()};
    input.index = i % 3;
    input.router = routers[random() % routers.size()];
    if (i % 4 == 0) input.likeliest = 2;
    input.scores_prompt = i % 8 == 0;
  }
  return inputs;
}

// Sequences arrive in random order at random steps. Others arrive beside them and are removed at random.
void expect_no_influence(const InferenceModel& model) {
  std::mt19937 random(7);
  const std::vector<SequenceInput> inputs = random_inputs(model, random);
  std::vector<size_t> waiting(inputs.size());
  std::iota(waiting.begin(), waiting.end(), 0);
  std::ranges::shuffle(waiting, random);
  Generation generation(model);
  std::map<size_t, Generated> together;  // by the sequence's number
  std::map<size_t, size_t> input_of;
  std::vector<GeneratedToken> tokens;
  while (!waiting.empty() || !tokens.empty()) {
    while (!waiting.empty() && random() % 2 == 0) {
      input_of[generation.add(inputs[waiting.back()])] = waiting.back();
      waiting.pop_back();
    }
    if (!waiting.empty()) generation.add({{1, 2, 3}, 9});
    tokens = generation.step();
    for (const GeneratedToken& token : tokens) {
      together[token.sequence].add(token);
      if (!input_of.contains(token.sequence) && random() % 4 == 0) generation.remove(token.sequence);
    }
  }
  for (const auto& [number, index] : input_of) {
    EXPECT_EQ(together[number].ids.size(), inputs[index].max_tokens);
    EXPECT_EQ(together[number], alone(model, inputs[index])) << index;
  }
}

InferenceModel routed(config::RunConfig config, at::ScalarType type = at::kFloat) {
  config.model.hidden_size = 96;
  config.model.num_heads = 4;
  config.model.ffn_hidden_size = 40;
  config.model.vocab_size = 300;
  InferenceModel model = eval::tiny_model(config, type);
  if (!config.model.is_dense()) model.routing.router = moe::make_router(config, at::kCPU);
  if (!config.model.attend_across_documents) model.model.end_of_text = 5;
  return model;
}

TEST(Generation, a_sequence_does_not_depend_on_the_others) {
  expect_no_influence(routed(eval::tiny_config()));
}

void expect_no_influence_in_other_models(at::ScalarType type) {
  config::RunConfig config = eval::tiny_config(config::ThresholdScope::kLayer);
  config.model.norm = config::NormType::kRms;
  config.model.shared_experts = 2;
  config.model.shared_gate = true;
  config.model.qk_norm = config::QkNorm::kHead;
  config.model.qkv_bias = true;
  expect_no_influence(routed(config, type));
  config.model.attend_across_documents = false;
  config.model.attention_window = 16;
  expect_no_influence(routed(config, type));
  config.model.num_experts = 1;
  config.model.shared_experts = 0;
  expect_no_influence(routed(config, type));
}

TEST(Generation, a_sequence_does_not_depend_on_the_others_in_bf16) {
  if (ops::has_amx()) GTEST_SKIP() << "with AMX the last bits depend on the batch";
  expect_no_influence(routed(eval::tiny_config(), at::kBFloat16));
}

TEST(Generation, a_sequence_does_not_depend_on_the_others_in_other_models) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    if (type == at::kBFloat16 && ops::has_amx()) continue;
    SCOPED_TRACE(type);
    expect_no_influence_in_other_models(type);
  }
}

// A trained model's logits are of the size 1 to 10. bf16 rounds each of the residual stream's sums to 2^-9.
TEST(Generation, has_in_bf16_the_scores_of_fp32_but_for_rounding) {
  const config::RunConfig config = eval::tiny_config();
  const auto scores = [&](at::ScalarType type) {
    const InferenceModel model = routed(config, type);
    Generation generation(model);
    SequenceInput input{
        .ids = {7, 90, 13, 250, 17, 3}, .max_tokens = 1, .likeliest = 0, .scores_prompt = true};
    generation.add(std::move(input));
    std::vector<double> log_probs;
    for (const TokenScore& score : generation.step()[0].scores) log_probs.push_back(score.log_prob);
    return at::tensor(log_probs).slice(0, 0, 5);
  };
  const at::Tensor exact = scores(at::kFloat), rounded = scores(at::kBFloat16);
  EXPECT_FALSE(at::equal(exact, rounded));
  EXPECT_LT((exact - rounded).abs().max().item<double>(), 0.3) << exact << rounded;
}

TEST(Generation, continues_prompts_and_refuses_an_empty_one) {
  const InferenceModel model = routed(eval::tiny_config());
  Generation generation(model);
  EXPECT_TRUE(generation.step().empty());
  EXPECT_THROW(generation.add({{}, 3}), std::invalid_argument);
  EXPECT_EQ(generation.add({{4, 5}, 0}), 0);
  EXPECT_TRUE(generation.step().empty());
  generation.extend(0, {}, 1);
  EXPECT_EQ(generation.step().size(), 1);
}

TEST(Generation, scores_are_the_log_probabilities_of_the_whole_text) {
  const InferenceModel model = routed(eval::tiny_config());
  const std::vector<int32_t> prompt = {7, 90, 13, 250};
  Generation generation(model);
  generation.add({.ids = prompt, .max_tokens = 3, .likeliest = 2, .scores_prompt = true});
  std::vector<int64_t> ids(prompt.begin(), prompt.end());
  std::vector<TokenScore> scores;
  for (auto tokens = generation.step(); !tokens.empty(); tokens = generation.step()) {
    ids.push_back(tokens[0].id);
    scores.insert(scores.end(), tokens[0].scores.begin(), tokens[0].scores.end());
  }
  ASSERT_EQ(scores.size(), ids.size() - 1);
  const at::NoGradGuard no_grad;
  const at::Tensor x_TD =
      models::hidden_states(model.model, at::tensor(ids).unsqueeze(0), model.routing).x_TD;
  const at::Tensor expected = at::log_softmax(at::matmul(x_TD, model.model.head_VD().t()), -1);
  for (size_t t = 0; t < scores.size(); ++t) {
    EXPECT_EQ(scores[t].id, ids[t + 1]);
    EXPECT_NEAR(scores[t].log_prob, expected[t][ids[t + 1]].item<double>(), 1e-4);
    ASSERT_EQ(scores[t].likeliest.size(), 2);
    EXPECT_NEAR(scores[t].likeliest[0].second, expected[t].max().item<double>(), 1e-4);
    EXPECT_EQ(scores[t].likeliest[0].first, expected[t].argmax().item<int64_t>());
  }
}

}  // namespace
}  // namespace dtopp::inference

// Compares segments with sequences that are computed one by one.
#include <array>
#include <numeric>
#include <stdexcept>
#include <unordered_map>

#include <gtest/gtest.h>

#include "dtopp/models/language_model.h"
#include "dtopp/parameters/parameters.h"
#include "tests/moe/fixed_threshold.h"

namespace dtopp::models {
namespace {

enum class Kind { kDense, kExperts, kDocuments, kWindow };

constexpr int64_t kEndOfText = 7;

// A model of two layers, dense or with eight experts. In the documents case, attention stays within a
// document; in the window case also within six tokens, heads of queries share keys and values, and each head
// has its own norm. Documents end within the text that the tests continue, at its end, and directly after
// each other.
class Segments : public testing::TestWithParam<Kind> {
 protected:
  Segments() {
    config::ModelConfig config;
    config.hidden_size = 16;
    config.num_layers = 2;
    config.num_heads = 2;
    config.ffn_hidden_size = 8;
    config.num_experts = GetParam() == Kind::kDense ? 1 : 8;
    config.attend_across_documents = GetParam() == Kind::kDense || GetParam() == Kind::kExperts;
    if (GetParam() == Kind::kWindow) {
      config.num_heads = 4;
      config.chosen_kv_heads = 2;
      config.chosen_head_size = 6;
      config.qk_norm = config::QkNorm::kHead;
      config.attention_window = 6;
    }
    config.vocab_size = 64;
    config.sequence_length = 2048;
    config.init_std = 0.5;
    std::unordered_map<std::string, at::Tensor> parameters;
    for (const parameters::ParameterSpec& spec : language_model_parameters(config, routing_)) {
      at::Tensor tensor = at::empty(spec.shape, at::kFloat);
      parameters::initialize(spec, 3, tensor);
      parameters.emplace(spec.name, tensor);
    }
    model_ =
        bind_language_model(config, routing_, [&](const std::string& name) { return parameters.at(name); });
    config::RunConfig run;
    run.model = config;
    run.routing = routing_;
    inputs_ = moe::fixed_threshold(run, 0.5);
    tokens_ = at::randint(kEndOfText + 1, 64, {40}, at::kLong);
    model_.end_of_text = kEndOfText;
    for (const int64_t end : {4, 8, 12, 13, 14, 30}) tokens_[end].fill_(kEndOfText);
  }

  // The states of a sequence that is computed on its own.
  at::Tensor alone(const at::Tensor& tokens_T) const {
    const at::NoGradGuard no_grad;
    return hidden_states(model_, tokens_T.unsqueeze(0), inputs_).x_TD;
  }
  at::Tensor states(const at::Tensor& tokens_T, std::span<const Segment> segments) const {
    return segment_states(model_, tokens_T, segments, inputs_).x_TD;
  }
  at::Tensor part(int64_t begin, int64_t end) const { return tokens_.slice(0, begin, end); }

  static void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
    ASSERT_EQ(actual.sizes(), expected.sizes());
    EXPECT_LT((actual - expected).abs().max().item<double>(), 1e-4);
  }

  config::RoutingConfig routing_;
  LanguageModel model_;
  moe::Routing inputs_;
  at::Tensor tokens_;
};

TEST_P(Segments, side_by_side_are_sequences_of_their_own) {
  const std::vector<Segment> segments = {{.length = 7}, {.length = 1}, {.length = 12}};
  const at::Tensor x_TD = states(part(0, 20), segments);
  expect_close(x_TD.slice(0, 0, 7), alone(part(0, 7)));
  expect_close(x_TD.slice(0, 7, 8), alone(part(7, 8)));
  expect_close(x_TD.slice(0, 8, 20), alone(part(8, 20)));
}

TEST_P(Segments, children_continue_their_parent_and_see_no_sibling) {
  const std::vector<Segment> segments = {{.length = 9},
                                         {.length = 3, .cache = nullptr, .parent = 0},
                                         {.length = 5, .cache = nullptr, .parent = 0}};
  const at::Tensor x_TD = states(part(0, 17), segments);
  expect_close(x_TD.slice(0, 0, 9), alone(part(0, 9)));
  expect_close(x_TD.slice(0, 9, 12), alone(part(0, 12)).slice(0, 9, 12));
  const at::Tensor second = at::cat({part(0, 9), part(12, 17)});
  expect_close(x_TD.slice(0, 12, 17), alone(second).slice(0, 9, 14));
}

TEST_P(Segments, a_cache_grows_token_by_token_or_in_pieces) {
  KeyValueCache one(2), other(2);
  std::vector<at::Tensor> pieces;
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 11}, {11, 12}, {12, 13}, {13, 40}}) {
    // Another sequence of another length in the same call.
    const at::Tensor beside = part(0, begin == 0 ? 5 : 1);
    const std::vector<Segment> segments = {{.length = end - begin, .cache = &one, .parent = kNoParent},
                                           {.length = beside.size(0), .cache = &other, .parent = kNoParent}};
    pieces.push_back(states(at::cat({part(begin, end), beside}), segments).slice(0, 0, end - begin));
  }
  EXPECT_EQ(one.length(), 40);
  EXPECT_EQ(other.length(), 8);
  expect_close(at::cat(pieces), alone(tokens_));
}

TEST_P(Segments, that_do_not_fit_together_are_refused) {
  const auto run = [&](std::vector<Segment> segments, int64_t tokens) {
    return states(part(0, tokens), segments);
  };
  EXPECT_THROW(run({{.length = 3}}, 4), std::invalid_argument);
  EXPECT_THROW(run({{.length = 3, .cache = nullptr, .parent = 0}}, 3), std::invalid_argument);
  EXPECT_THROW(run({{.length = 1},
                    {.length = 1, .cache = nullptr, .parent = 0},
                    {.length = 1, .cache = nullptr, .parent = 1}},
                   3),
               std::invalid_argument);
}

std::string name_of(const testing::TestParamInfo<Kind>& info) {
  const std::array names = {"dense", "experts", "documents", "window"};
  return names.at(static_cast<size_t>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Models, Segments,
                         testing::Values(Kind::kDense, Kind::kExperts, Kind::kDocuments, Kind::kWindow),
                         name_of);

}  // namespace
}  // namespace dtopp::models

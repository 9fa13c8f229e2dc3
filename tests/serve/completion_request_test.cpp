#include "dtopp/serve/completion_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tasks/evaluation_data.h"

namespace dtopp::serve {
namespace {

using testing::HasSubstr;

ServedModel served() {
  ServedModel model;
  model.name = "tiny";
  model.sequence_length = 64;
  model.vocab_size = 100;
  model.num_experts = model.largest_budget = 3;
  model.smallest_budget = 1;
  model.most_choices = 8;
  model.budgets = {1, 2, 3};
  return model;
}

CompletionRequest read(const std::string& body, const ServedModel& model = served()) {
  return read_completion_request(body, model, tasks::shipped_tokenizer());
}

TEST(CompletionRequest, has_the_defaults_of_the_interface) {
  const CompletionRequest request = read(R"({"model": "tiny", "prompt": "The fog", "stop": null})");
  ASSERT_EQ(request.prompts.size(), 1);
  EXPECT_EQ(request.prompts[0], tasks::shipped_tokenizer().encode("The fog"));
  EXPECT_EQ(request.max_tokens, 16);
  EXPECT_EQ(request.n, 1);
  EXPECT_EQ(request.sampling.temperature, 1);
  EXPECT_EQ(request.sampling.top_p, 1);
  EXPECT_FALSE(request.log_probs || request.target_experts || request.echo || request.stream);
}

TEST(CompletionRequest, numbers_its_sequences_by_prompt_then_choice) {
  const CompletionRequest request =
      read(R"({"prompt": [[1, 2], [3]], "n": 2, "seed": 9, "logprobs": 0, "echo": true, "max_tokens": 0})");
  const auto sequences = sequences_of(request);
  ASSERT_EQ(sequences.size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(sequences[i].index, i);
    EXPECT_EQ(sequences[i].ids, request.prompts[i / 2]);
    EXPECT_EQ(sequences[i].sampling.seed, 9);
    EXPECT_EQ(sequences[i].max_tokens, 1);
    EXPECT_TRUE(sequences[i].scores_prompt && sequences[i].likeliest == 0);
  }
}

TEST(CompletionRequest, a_wrong_one_is_refused_with_the_member_that_is_wrong) {
  const auto error_of = [](const std::string& body, const ServedModel& model = served()) {
    try {
      read(body, model);
    } catch (const ApiError& error) {
      return error;
    }
    return ApiError(200, "");
  };
  const std::vector<std::pair<std::string, std::string>> members = {
      {R"("max_tokens": 1.5)", "max_tokens"},
      {R"("max_tokens": 64)", "max_tokens"},
      {R"("max_tokens": -1)", "max_tokens"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("n": 9)", "n"},
      {R"("n": 18446744073709551615)", "n"},
      {R"("temperature": "hot")", "temperature"},
      {R"("temperature": -0.1)", "temperature"},
      {R"("top_p": 2)", "top_p"},
      {R"("logprobs": 6)", "logprobs"},
      {R"("logprobs": true)", "logprobs"},
      {R"("stream": 1)", "stream"},
      {R"("stop": [""])", "stop"},
      {R"("stop": ["a", "b", "c", "d", "e"])", "stop"},
      {R"("target_experts": 4)", "target_experts"},
      {R"("target_experts": 1.5)", "target_experts"},
      {R"("target_expert": 2)", "target_expert"},
      {R"("best_of": 2)", "best_of"},
      {R"("presence_penalty": 1)", "presence_penalty"},
      {R"("suffix": "x")", "suffix"},
      {R"("stream_options": [])", "stream_options"}};
  for (const auto& [member, name] : members) {
    const ApiError error = error_of(R"({"prompt": "The fog", )" + member + "}");
    EXPECT_EQ(error.status, 400) << member;
    EXPECT_EQ(error.field, name) << member;
  }
  for (const char* prompt : {"null", "3", "[]", "\"\"", "[[]]", "[1, -2]", "[100]", "[1, \"a\"]",
                             "[\"a\", 1]", "[0.5]", "[[1], {}]", "{}"})
    EXPECT_EQ(error_of(std::string(R"({"prompt": )") + prompt + "}").status, 400) << prompt;
  for (const char* body : {"", "{", "[]", "3", "null", "{\"prompt\": \"\xff\"}", "{\"prompt\": \"a\"} x"})
    EXPECT_EQ(error_of(body).status, 400) << body;
  EXPECT_EQ(error_of(R"({"prompt": "a", "model": "other"})").status, 404);
  EXPECT_THAT(error_of(R"({"prompt": "a", "target_expert": 2})").what(), HasSubstr("target_experts"));
}

TEST(CompletionRequest, explains_why_a_model_has_no_budget) {
  ServedModel model = served();
  const auto message = [&] {
    try {
      read(R"({"prompt": "The fog", "target_experts": 2})", model);
    } catch (const ApiError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(), "");
  model.budgets = {1, 3};
  EXPECT_THAT(message(), HasSubstr("2 experts"));
  model.budgets.clear();
  EXPECT_THAT(message(), HasSubstr("--calibration"));
  model.largest_budget = 0;
  EXPECT_THAT(message(), HasSubstr("fixed"));
}

}  // namespace
}  // namespace dtopp::serve

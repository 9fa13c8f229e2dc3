#include "dtopp/tasks/answers.h"

#include <cmath>

#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "tests/base/scratch_directory.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::tasks {
namespace {

TaskItem item_with(int64_t gold, const std::string& answer = "") {
  TaskItem item;
  item.gold = gold;
  item.answer = answer;
  return item;
}

// The cases of the evaluation's specification: generated text, reference answer, normalised answer, verdict.
TEST(Answers, a_generated_answer_is_right_when_it_begins_with_the_gold_one) {
  struct Case {
    std::string generated, gold, normalized;
    bool correct;
  };
  const std::vector<Case> cases = {
      {"\n( 8.0 - 7.0 ) #### 1\nQ: Tom", "1", "1", true},
      {"\n( 8.0 + 7.0 ) #### 15", "1", "15", true},
      {" #### -3", "3", "3", true},
      {"\n67 - 9 #### 58.0", "58", "58 0", true},
      {"\n( 8.0 - 7.0 )", "8", "8 0 7 0", true},
      {"\n( 8.0 - 7.0 ) ####1", "1", "8 0 7 0 1", false},
      {"\n\nThe answer is 1", "1", "", false},
      {"1 #### 2 #### 3", "3", "3", true},
      {" #### 4Q: 5 #### 6", "4", "4", true},
      {" #### 4\n\n#### 5", "5", "4", false},
  };
  for (const Case& c : cases) {
    Scores scores;
    scores.generated_text = c.generated;
    const Answer answer = judge(task_named("svamp"), item_with(0, c.gold), scores);
    EXPECT_EQ(answer.text, c.normalized) << c.generated;
    EXPECT_EQ(answer.correct, c.correct) << c.generated;
  }
}

TEST(Answers, normalise_as_the_harness_does) {
  EXPECT_EQ(normalize_answer("  The_Answer is:\tA  dozen\n"), "answer is dozen");
  EXPECT_EQ(normalize_answer("an apple, theatre; Another a"), "apple theatre another");
  EXPECT_EQ(normalize_answer("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~‘’´"), "");
  EXPECT_EQ(normalize_answer("1“A”2\u00a0“a1”"), "1“ ”2 “a1”");
  EXPECT_EQ(normalize_answer("ÀÉ STRASSE"), "àé strasse");
  EXPECT_EQ(normalize_answer("a\xff"), "\uFFFD");
}

TEST(Answers, generation_may_stop_at_a_stop_string) {
  EXPECT_EQ(cut_at_stop_string("a\nb"), "a\nb");
  EXPECT_EQ(cut_at_stop_string("a\n\nbQ:"), "a");
  EXPECT_EQ(cut_at_stop_string("aQ: b\n\n"), "a");
  EXPECT_EQ(cut_at_stop_string("Q:"), "");
}

TEST(Answers, the_smallest_mean_loss_wins_and_the_first_of_equals) {
  EXPECT_EQ(predict_choice({{-2.0F}, {-1.5F}}), 1);
  EXPECT_EQ(predict_choice({{-1.0F, -1.0F, -1.0F}, {-1.5F}}), 0) << "the sum would choose the second";
  EXPECT_EQ(predict_choice({{-3.0F}, {-1.0F}, {-1.0F}, {-1.0F, -1.0F}}), 1);
}

TEST(Answers, a_choice_is_right_when_it_is_the_gold_one) {
  Scores scores;
  scores.log_probs = {{-2.0F}, {-1.0F}};
  for (const char* name : {"copa", "winogrande"}) {
    EXPECT_TRUE(judge(task_named(name), item_with(1), scores).correct);
    EXPECT_FALSE(judge(task_named(name), item_with(0), scores).correct);
    EXPECT_EQ(judge(task_named(name), item_with(0), scores).choice, 1);
  }
}

TEST(Answers, know_the_likelihood_of_the_right_continuation) {
  Scores scores;
  scores.log_probs = {{-2.0F}, {-1.0F, -0.5F}};
  EXPECT_DOUBLE_EQ(judge(task_named("copa"), item_with(1), scores).nll, 1.5);
  EXPECT_EQ(judge(task_named("copa"), item_with(1), scores).tokens, 2);
  EXPECT_DOUBLE_EQ(judge(task_named("copa"), item_with(0), scores).nll, 2.0);
  EXPECT_EQ(judge(task_named("svamp"), item_with(0, "1"), {}).tokens, 0);
}

TEST(Answers, language_modelling_is_right_when_every_token_is_the_likeliest) {
  Scores scores;
  scores.log_probs = {{-0.1F, -0.2F}};
  scores.greedy = {true};
  EXPECT_TRUE(judge(task_named("lambada_openai"), {}, scores).correct);
  scores.greedy = {false};
  EXPECT_FALSE(judge(task_named("lambada_openai"), {}, scores).correct);
}

TEST(Answers, a_log_probability_that_is_not_finite_is_an_error) {
  error_of<NumericalError>([] { predict_choice({{-1.0F}, {-1.0F, std::nanf("")}}); });
  error_of<NumericalError>([] { predict_choice({{-INFINITY}, {-1.0F}}); });
}

}  // namespace
}  // namespace dtopp::tasks

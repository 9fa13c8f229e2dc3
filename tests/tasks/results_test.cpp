#include "dtopp/tasks/results.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tasks/evaluation_data.h"

namespace dtopp::tasks {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(Results, one_data_set_has_the_plain_accuracy) {
  const std::vector<Tally> tallies = {{.correct = 82, .items = 100}};
  const TaskResult result = summarize(task_named("copa"), tallies);
  EXPECT_DOUBLE_EQ(result.accuracy, 0.82);
  EXPECT_DOUBLE_EQ(result.standard_error, std::sqrt(0.82 * 0.18 / 100));
  EXPECT_EQ(result.items, 100);
}

TEST(Results, categories_weigh_alike_whatever_their_size) {
  const std::vector<Tally> tallies = {{.correct = 1, .items = 1}, {.correct = 250, .items = 1000}};
  const TaskResult result = summarize(task_named("mmlu"), tallies);
  EXPECT_DOUBLE_EQ(result.accuracy, 0.625);
  EXPECT_DOUBLE_EQ(result.standard_error, std::sqrt(0.25 * 0.75 / 1000) / 2);
  EXPECT_EQ(result.items, 1001);
}

TEST(Results, language_modelling_has_a_perplexity) {
  const std::vector<Answer> answers = {{.correct = true, .nll = std::log(2.0), .tokens = 1},
                                       {.nll = std::log(32.0), .tokens = 3}};
  const std::vector<Tally> tallies = {tally({}, answers)};
  const std::vector<TaskResult> results = {summarize(task_named("lambada_openai"), tallies),
                                           summarize(task_named("copa"), tallies)};
  const auto tasks = to_json(results)["tasks"];
  EXPECT_DOUBLE_EQ(tasks["lambada_openai"]["perplexity"], 8.0);  // sqrt(2 * 32): a continuation is one word
  EXPECT_DOUBLE_EQ(tasks["lambada_openai"]["nll"], std::log(64.0) / 4);
  EXPECT_DOUBLE_EQ(tasks["copa"]["nll"], std::log(64.0) / 4);
  EXPECT_FALSE(tasks["copa"].contains("perplexity"));
  EXPECT_THAT(format_table(results), testing::HasSubstr("       2  perplexity 8\n"));
}

TEST(Results, tasks_of_a_model_with_experts_say_how_many_they_took) {
  const std::vector<Tally> tallies = {{.correct = 1, .items = 1, .experts = {10, 4}},
                                      {.correct = 2, .items = 3, .experts = {5, 2}}};
  const std::vector<TaskResult> results = {summarize(task_named("mmlu"), tallies)};
  EXPECT_EQ(to_json(results)["tasks"]["mmlu"]["active_experts"], 2.5);
  EXPECT_THAT(format_table(results), HasSubstr("   items  experts\n"));
  EXPECT_THAT(format_table(results), HasSubstr("       4    2.500\n"));
}

TEST(Results, categories_are_shown_where_a_task_has_some) {
  std::vector<Tally> tallies;
  for (const char* name : {"anatomy", "astronomy", "law", "virology"})
    tallies.push_back({.category = name, .correct = 1, .items = 4});
  tallies[1].correct = 3;
  const std::vector<TaskResult> results = {summarize(task_named("mmlu"), tallies),
                                           summarize(task_named("copa"), std::span(tallies).first(1))};
  EXPECT_EQ(json::parse(to_json(results)["tasks"]["mmlu"]["categories"]["astronomy"].dump()),
            json::parse(R"({"accuracy": 0.75, "items": 4})"));
  EXPECT_FALSE(to_json(results)["tasks"]["copa"].contains("categories"));
  const std::string pad(29, ' ');
  EXPECT_EQ(format_categories(results), "anatomy" + pad + "  25.0  law" + std::string(33, ' ') +
                                            "  25.0\nastronomy" + std::string(27, ' ') + "  75.0  virology" +
                                            std::string(28, ' ') + "  25.0\n\n");
}

// Source: paper, table of the 1.3B models, column "DTop-p".
std::vector<TaskResult> paper_column() {
  const std::vector<double> percent = {16.0, 27.4, 67.1, 41.7, 85.0, 78.1, 70.9,
                                       67.2, 62.5, 65.4, 27.2, 25.5, 27.7};
  std::vector<TaskResult> results;
  for (size_t i = 0; i < percent.size(); ++i)
    results.push_back({.task = all_tasks()[i], .accuracy = percent[i] / 100, .items = 100});
  return results;
}

TEST(Results, the_average_of_the_papers_column_is_the_papers) {
  EXPECT_NEAR(100 * average(paper_column()), 50.9, 0.05);
  EXPECT_THAT(format_table(paper_column()), testing::EndsWith("Average                   50.9\n"));
}

TEST(Results, areas_are_means_of_their_tasks) {
  const auto areas = summarize_areas(paper_column());
  ASSERT_EQ(areas.size(), 5);
  EXPECT_EQ(areas[0].area, "Symbolic Problem Solving");
  EXPECT_DOUBLE_EQ(areas[0].accuracy, 0.16);
  EXPECT_EQ(areas[3].area, "Language Understanding");
  EXPECT_NEAR(areas[3].accuracy, (0.709 + 0.672 + 0.625) / 3, 1e-12);
}

TEST(Results, json_holds_fractions_and_the_average_of_what_ran) {
  const auto column = paper_column();
  const auto results = json::parse(to_json(std::span(column).subspan(4, 2)).dump());
  EXPECT_EQ(results, json::parse(R"({"tasks": {"copa": {"accuracy": 0.85, "stderr": 0.0, "items": 100},
      "piqa": {"accuracy": 0.7809999999999999, "stderr": 0.0, "items": 100}}, "average": 0.8154999999999999})"));
}

const std::vector<LongTask> kLeftOut = {{task_named("boolq"), 1895, 512}, {task_named("mmlu"), 2048, 512}};

TEST(Results, json_names_what_was_left_out_and_what_the_average_is_over) {
  const auto column = paper_column();
  const auto json = to_json(std::span(column).subspan(4, 2), kLeftOut);
  EXPECT_DOUBLE_EQ(json["average"], (0.85 + 0.781) / 2);
  EXPECT_EQ(json["average_over"], ordered_json({"copa", "piqa"}));
  EXPECT_EQ(json["left_out"]["boolq"], ordered_json({{"longest", 1895}, {"sequence_length", 512}}));
  EXPECT_EQ(json["left_out"].size(), 2);
  EXPECT_FALSE(to_json(column).contains("left_out") || to_json(column).contains("average_over"));
}

TEST(Results, tables_name_what_was_left_out_and_what_the_average_is_over) {
  const auto column = paper_column();
  const auto some = std::span(column).subspan(4, 2);
  const std::string line =
      "BoolQ(5)             left out: its longest prompt takes 1895 tokens, the model's sequences have 512\n";
  EXPECT_THAT(format_table(some, kLeftOut), HasSubstr(line));
  EXPECT_THAT(format_table(some, kLeftOut), EndsWith("Average                   81.5  over 2 of 4 tasks\n"));
  const std::string with_paper = format_table_with_paper(some, kLeftOut, "a small one");
  EXPECT_THAT(with_paper, HasSubstr(line));
  EXPECT_THAT(with_paper, EndsWith("over 2 of 4 tasks (the paper's is over all 13)\n"));
}

// The table always has the paper's columns, so it names both sides.
TEST(Results, the_papers_columns_say_whose_they_are) {
  const std::string table = format_table_with_paper(paper_column(), {}, "9.9M parameters");
  EXPECT_THAT(table,
              StartsWith("accuracy: this model, 9.9M parameters\n"
                         "paper:    Dense-1.3B, and MoE-1.3B-6.9B-64E8A routed by top-k, top-p and DTop-p"));
  EXPECT_THAT(table, HasSubstr("COPA(5)                   85.0     0.0 |   69.0   82.0   82.0   85.0\n"));
  EXPECT_THAT(table, HasSubstr("Average                   50.9         |   45.1   49.0   49.3   50.9\n"));
}

}  // namespace
}  // namespace dtopp::tasks

#include "dtopp/tasks/task_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "tests/base/scratch_directory.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::tasks {
namespace {

using testing::HasSubstr;

// Two items: one whose choices share a context, and one with a context per choice, one of them truncated.
TaskRequests two_items() {
  TaskRequests requests{.task = task_named("copa"), .data_sets = {{}}, .requests = {{{}, {}}}};
  Request& shared = requests.requests[0][0];
  shared.contexts = {{1, 2, 3}};
  shared.cut_tokens = {0};
  shared.continuations = {{4}, {5, 6}};
  Request& own = requests.requests[0][1];
  own.contexts = {{1}, {1, 2}};
  own.cut_tokens = {2, 0};
  own.continuations = {{3}, {4}};
  return requests;
}

TEST(TaskRequests, counts_a_shared_context_once_a_choice) {
  const PromptCounts counts = count_prompts(two_items());
  EXPECT_EQ(counts.items, 2);
  EXPECT_EQ(counts.sequences, 4);
  EXPECT_EQ(counts.cut_sequences, 1);
  EXPECT_EQ(counts.tokens, (3 + 1) + (3 + 2) + (1 + 1) + (2 + 1));
  EXPECT_EQ(counts.longest, 5);
}

TEST(TaskRequests, generated_tokens_count_for_the_longest) {
  TaskRequests requests{.task = task_named("svamp"), .data_sets = {{}}, .requests = {{{}}}};
  requests.requests[0][0].contexts = {{1, 2, 3}};
  requests.requests[0][0].cut_tokens = {0};
  requests.requests[0][0].max_new_tokens = 31;
  EXPECT_EQ(count_prompts(requests).longest, 34);
  EXPECT_EQ(count_prompts(requests).tokens, 3);
}

// copa takes at most 5 tokens, svamp 34.
std::vector<TaskRequests> short_and_long() {
  TaskRequests generation{.task = task_named("svamp"), .data_sets = {{}}, .requests = {{{}}}};
  generation.requests[0][0].contexts = {{1, 2, 3}};
  generation.requests[0][0].cut_tokens = {0};
  generation.requests[0][0].max_new_tokens = 31;
  return {generation, two_items()};
}

TEST(TaskRequests, what_does_not_fit_a_model_is_left_out_of_all) {
  auto tasks = short_and_long();
  EXPECT_TRUE(take_out_long_tasks(tasks, "all", 34).empty());
  EXPECT_EQ(tasks.size(), 2);
  const auto left_out = take_out_long_tasks(tasks, "all", 33);
  ASSERT_EQ(left_out.size(), 1);
  EXPECT_EQ(left_out[0].task.name, "svamp");
  EXPECT_EQ(left_out[0].longest, 34);
  EXPECT_EQ(left_out[0].sequence_length, 33);
  ASSERT_EQ(tasks.size(), 1);
  EXPECT_EQ(tasks[0].task.name, "copa");
}

TEST(TaskRequests, what_is_named_and_does_not_fit_is_refused) {
  for (const char* names : {"svamp", "copa,svamp", "all,svamp", "svamp,all"}) {
    auto tasks = short_and_long();
    const std::string message = error_of<UsageError>([&] { take_out_long_tasks(tasks, names, 33); });
    EXPECT_THAT(message, HasSubstr("svamp: its longest prompt takes 34 tokens"));
    EXPECT_THAT(message, HasSubstr("model.sequence_length is 33"));
  }
  auto tasks = short_and_long();
  EXPECT_EQ(take_out_long_tasks(tasks, "copa,all", 33).size(), 1);
}

TEST(TaskRequests, a_model_that_nothing_fits_is_refused) {
  auto tasks = short_and_long();
  EXPECT_THAT(error_of<UsageError>([&] { take_out_long_tasks(tasks, "all", 4); }),
              HasSubstr("longest prompt"));
}

TEST_F(EvaluationData, a_limit_takes_the_first_items_of_each_category) {
  const auto directory = evaluation_data() / "data";
  const TaskRequests all = prepare_requests(task_named("mmlu"), directory, shipped_tokenizer(), 1 << 20);
  const TaskRequests two = prepare_requests(task_named("mmlu"), directory, shipped_tokenizer(), 2);
  ASSERT_EQ(two.requests.size(), 57);
  EXPECT_EQ(count_prompts(all).items, 14042);
  for (size_t category = 0; category < 57; ++category) {
    ASSERT_EQ(two.requests[category].size(), 2);
    EXPECT_EQ(two.requests[category][1].index, 1);
    EXPECT_EQ(two.requests[category][1].contexts, all.requests[category][1].contexts);
  }
}

using nlohmann::json;

TEST(DumpLine, holds_prompts_and_what_came_of_them) {
  Request request;
  request.index = 7;
  request.contexts = {{1, 2}};
  request.continuations = {{3}, {4, 5}};
  const json prompts = json::parse(dump_line(task_named("copa"), {}, request, nullptr, nullptr));
  EXPECT_EQ(prompts, json::parse(R"({"task": "copa", "category": null, "index": 7, "contexts": [[1, 2]],
      "continuations": [[3], [4, 5]]})"));
  Scores scores;
  scores.log_probs = {{-1.5F}, {-0.25F, -0.5F}};
  scores.greedy = {false, true};
  const Answer answer{.choice = 1, .text = "", .correct = true};
  json expected = prompts;
  expected.update(json::parse(R"({"log_probs": [[-1.5], [-0.25, -0.5]], "greedy": [false, true],
      "prediction": 1, "correct": true})"));
  EXPECT_EQ(json::parse(dump_line(task_named("copa"), {}, request, &scores, &answer)), expected);
  const auto mmlu = json::parse(
      dump_line(task_named("mmlu"), {.category = "anatomy", .items = {}}, request, nullptr, nullptr));
  EXPECT_EQ(mmlu["category"], "anatomy");
}

TEST(DumpLine, of_generation_holds_the_new_ids_and_the_answer) {
  Request request;
  request.contexts = {{1}};
  Scores scores;
  scores.generated = {9, 8};
  const Answer answer{.text = "12", .correct = false};
  const auto line = json::parse(dump_line(task_named("svamp"), {}, request, &scores, &answer));
  EXPECT_EQ(line, json::parse(R"({"task": "svamp", "category": null, "index": 0, "contexts": [[1]],
      "continuations": [], "log_probs": [], "greedy": [], "generated": [9, 8], "prediction": "12",
      "correct": false})"));
}

TEST(Prompts, are_written_a_line_an_item) {
  ScratchDirectory scratch;
  TaskRequests requests{.task = task_named("copa"), .data_sets = {{}}, .requests = {{{}, {}}}};
  requests.requests[0][1].index = 1;
  requests.requests[0][1].contexts = {{5}};
  write_file_atomically(scratch / "dump.jsonl",
                        [&](OutputFile& file) { write_prompts(file, std::span(&requests, 1)); });
  const std::string first = dump_line(requests.task, {}, requests.requests[0][0], nullptr, nullptr);
  const std::string second = dump_line(requests.task, {}, requests.requests[0][1], nullptr, nullptr);
  EXPECT_EQ(read_file(scratch / "dump.jsonl"), first + "\n" + second + "\n");
}

}  // namespace

}  // namespace dtopp::tasks

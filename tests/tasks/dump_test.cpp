#include "dtopp/tasks/dump.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/base/scratch_directory.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::tasks {
namespace {

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

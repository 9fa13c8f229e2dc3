#include "dtopp/tasks/task.h"

#include <cmath>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/hash.h"
#include "tests/base/scratch_directory.h"
#include "tests/data/token_fixtures.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::tasks {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string_view> names_of(std::string_view selection) {
  std::vector<std::string_view> names;
  for (const Task& task : select_tasks(selection)) names.push_back(task.name);
  return names;
}

TEST(Task, all_are_the_thirteen_of_the_paper_in_its_order) {
  EXPECT_THAT(names_of("all"), ElementsAre("svamp", "mmlu", "arc_easy", "arc_challenge", "copa", "piqa",
                                           "hellaswag", "winogrande", "lambada_openai", "boolq",
                                           "agi_eval_lsat_rc", "agi_eval_lsat_lr", "agi_eval_sat_en"));
}

TEST(Task, every_line_of_the_table_is_filled_in) {
  std::set<std::string_view> areas;
  std::set<std::string_view> checksums;
  for (const Task& task : all_tasks()) {
    areas.insert(task.area);
    checksums.insert(task.items_sha256);
    EXPECT_EQ(task.items_sha256.size(), 64) << task.name;
    EXPECT_FALSE(task.title.empty()) << task.name;
    const bool has_choices = task.type == TaskType::kMultipleChoice || task.type == TaskType::kSchema;
    EXPECT_EQ(task.num_choices > 0, has_choices) << task.name;
  }
  EXPECT_EQ(areas.size(), 5);
  EXPECT_EQ(checksums.size(), 13);
}

TEST(Task, a_selection_is_each_task_once_in_the_order_of_the_table) {
  EXPECT_THAT(names_of("copa,svamp,copa"), ElementsAre("svamp", "copa"));
  EXPECT_EQ(names_of("copa,all").size(), 13);
}

TEST(Task, a_mistyped_name_is_answered_with_the_nearest) {
  const auto message_for = [](std::string_view names) {
    return error_of<UsageError>([&] { select_tasks(names); });
  };
  EXPECT_THAT(message_for("copa,helaswag"), HasSubstr("'helaswag'; did you mean hellaswag?"));
  EXPECT_THAT(message_for("nonsense"), HasSubstr("known tasks: all, svamp, mmlu"));
  EXPECT_THAT(message_for(""), HasSubstr("unknown task ''"));
  EXPECT_THAT(message_for("copa,"), HasSubstr("unknown task ''"));
}

using testing::ElementsAre;
using testing::HasSubstr;

class TaskData : public testing::Test {
 protected:
  TaskFile read(const std::string& task, const std::string& text) {
    data::write_bytes(scratch_ / "task.jsonl", text);
    return read_task_file(task_named(task), scratch_ / "task.jsonl");
  }
  std::string error_in(const std::string& task, const std::string& text) {
    return error_of<DataError>([&] { read(task, text); });
  }
  ScratchDirectory scratch_;
};

TEST_F(TaskData, strips_every_string_but_the_choices) {
  const auto item_of = [&](const std::string& task, const std::string& line) {
    return read(task, line).data_sets.at(0).items.at(0);
  };
  TaskItem copa;
  copa.question = "a b";
  copa.choices = {" x ", "y\n"};
  copa.gold = 1;
  EXPECT_EQ(item_of("copa", R"({"gold": 1, "query": " \t a b\r\n", "choices": [" x ", "y\n"]})"), copa);
  TaskItem schema;
  schema.choices = {"p ", " q"};
  schema.continuation = "r";
  EXPECT_EQ(item_of("winogrande", R"({"context_options": ["p ", " q"], "continuation": " r\n", "gold": 0})"),
            schema);
  TaskItem lambada;
  lambada.question = "s";
  lambada.continuation = "t";
  EXPECT_EQ(item_of("lambada_openai", R"({"context": "s ", "continuation": "\n\nt"})"), lambada);
  TaskItem svamp;
  svamp.question = "u";
  svamp.worked_answer = "1 + 0 #### 1";
  svamp.answer = "1";
  svamp.raw_worked_answer = " 1 + 0 #### 1 ";
  EXPECT_EQ(item_of("svamp", R"({"context": "u ", "chain_of_thought": " 1 + 0", "answer": "1 "})"), svamp);
}

std::string mmlu_line(const std::string& category, const std::string& query) {
  return R"({"query": ")" + query + R"(", "gold": 3, "choices": ["A", "B", "C", "D"], "category": ")" +
         category + "\"}\n";
}

TEST_F(TaskData, categories_are_data_sets_in_byte_order) {
  const auto file =
      read("mmlu", mmlu_line("b", "1") + mmlu_line("Z", "2") + mmlu_line("a", "3") + mmlu_line("b ", "4"));
  std::vector<std::string> seen;
  for (const DataSet& data : file.data_sets) {
    for (const TaskItem& item : data.items) seen.push_back(data.category + item.question);
  }
  EXPECT_THAT(seen, ElementsAre("Z2", "a3", "b1", "b4"));
}

TEST_F(TaskData, the_blob_id_is_of_all_bytes) {
  const std::string line = R"({"context": "s", "continuation": "t"})";
  for (const std::string& text : {line + "\n", line, line + "\n" + line + "\n"})
    EXPECT_EQ(read("lambada_openai", text).blob_id, git_blob_id(text));
}

TEST_F(TaskData, the_digest_is_of_what_scores_depend_on) {
  const auto digest = [&](const std::string& task, const std::string& text) {
    return digest_items(read(task, text).data_sets);
  };
  const std::string first = mmlu_line("a", "1"), second = mmlu_line("b", "2"), third = mmlu_line("b", "3");
  const std::string items = digest("mmlu", first + second + third);
  EXPECT_EQ(digest("mmlu", second + third + mmlu_line("a", " 1 ")), items);
  EXPECT_NE(digest("mmlu", first + third + second), items);
  EXPECT_NE(digest("mmlu", first + second + mmlu_line("c", "3")), items);
  // Bytes that move from one string to the next make another digest, as does white space in a choice.
  const auto copa = [&](const std::string& question, const std::string& choices, int gold) {
    return digest("copa", R"({"query": ")" + question + R"(", "choices": [)" + choices + R"(], "gold": )" +
                              std::to_string(gold) + "}");
  };
  const std::set<std::string> digests = {copa("q", R"("x", "yz")", 0),  copa("q", R"("x", "yz")", 1),
                                         copa("qx", R"("y", "z")", 0),  copa("q", R"("xy", "z")", 0),
                                         copa("q", R"("x", " yz")", 0), copa("q", R"("yz", "x")", 0)};
  EXPECT_EQ(digests.size(), 6);
  // Category, question, two choices, the three strings of other types, and the right choice.
  Sha256 expected;
  expected.update("0:1:q1:x1:y0:0:0:1:1");
  EXPECT_EQ(copa("q", R"("x", "y")", 1), expected.hexdigest());
}

TEST_F(TaskData, damaged_lines_are_named) {
  const std::string good = R"({"query": "q", "choices": ["x", "y"], "gold": 1})";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {good.substr(0, 30), "invalid JSON"},
      {"", "invalid JSON"},
      {"{\"query\": \"\xff\"}", "invalid JSON"},
      {"[1]", "must be a JSON object"},
      {R"({"choices": ["x", "y"], "gold": 1})", "query: is missing"},
      {R"({"query": 7, "choices": ["x", "y"], "gold": 1})", "query: must be a string"},
      {R"({"query": " \n", "choices": ["x", "y"], "gold": 1})", "query: must be a string that is not empty"},
      {R"({"query": "q", "choices": "xy", "gold": 1})", "choices: must be an array of strings"},
      {R"({"query": "q", "choices": ["x"], "gold": 0})", "choices: must be an array of 2 strings"},
      {R"({"query": "q", "choices": ["x", 3], "gold": 0})", "choices: must be an array of strings"},
      {R"({"query": "q", "choices": ["x", ""], "gold": 0})", "choices: must be an array of 2 strings"},
      {R"({"query": "q", "choices": ["x", "y"]})", "gold: is missing"},
      {R"({"query": "q", "choices": ["x", "y"], "gold": 2})", "gold: must be an integer from 0 to 1"},
      {R"({"query": "q", "choices": ["x", "y"], "gold": -1})", "gold: must be an integer from 0 to 1"},
      {R"({"query": "q", "choices": ["x", "y"], "gold": 1.0})", "gold: must be an integer from 0 to 1"},
      {R"({"query": "q", "choices": ["x", "y"], "gold": 18446744073709551615})",
       "gold: must be an integer from 0 to 1"},
  };
  for (const auto& [line, cause] : cases) {
    const std::string message = error_in("copa", good + "\n" + line + "\n" + good + "\n");
    EXPECT_THAT(message, HasSubstr((scratch_ / "task.jsonl").string() + ": line 2: ")) << line;
    EXPECT_THAT(message, HasSubstr(cause)) << line;
  }
  EXPECT_THAT(error_in("mmlu", good), HasSubstr("category"));
  EXPECT_THAT(error_in("copa", std::string(2 << 20, ' ')), HasSubstr("line 1: longer than"));
}

TEST_F(TaskData, a_file_is_accepted_for_its_items_or_its_bytes) {
  const std::string text = R"({"query": "q", "choices": ["x", "y"], "gold": 1})";
  data::write_bytes(scratch_ / "copa.jsonl", text);
  Task task = task_named("copa");
  const auto load = [&] { return load_task(task, scratch_.path()).at(0).items.size(); };
  EXPECT_THAT(error_of<DataError>(load), HasSubstr("the file has changed"));
  const std::string blob_id = git_blob_id(text), items = digest_items(read("copa", text).data_sets);
  task.file_blob_id = blob_id;
  EXPECT_EQ(load(), 1);
  data::write_bytes(scratch_ / "copa.jsonl", text + "\n");
  EXPECT_THAT(error_of<DataError>(load), HasSubstr("the file has changed"));
  task.items_sha256 = items;
  EXPECT_EQ(load(), 1);
}

TEST_F(TaskData, a_missing_or_changed_file_is_an_error) {
  const auto load = [&] { load_task(task_named("copa"), scratch_.path()); };
  EXPECT_THAT(error_of<DataError>(load), HasSubstr((scratch_ / "copa.jsonl").string() +
                                                   ": no such file; scripts/get_data.py tasks fetches it"));
  data::write_bytes(scratch_ / "copa.jsonl", R"({"query": "q", "choices": ["x", "y"], "gold": 1})");
  const std::string message = error_of<DataError>(load);
  EXPECT_THAT(message, HasSubstr((scratch_ / "copa.jsonl").string()));
  EXPECT_THAT(message, HasSubstr("the task's have f71e4d4149e5757a…: the file has changed"));
}

class TaskFiles : public EachTask {};

TEST_P(TaskFiles, file_is_the_one_the_checksum_names) {
  const nlohmann::json golden = read_golden("summary.json").at(GetParam());
  size_t items = 0;
  const auto data_sets = load_task(task_named(GetParam()), evaluation_data() / "data");
  for (const DataSet& data : data_sets) items += data.items.size();
  EXPECT_EQ(items, golden["items"]);
  EXPECT_EQ(data_sets.size(), GetParam() == "mmlu" ? 57 : 1);
}

INSTANTIATE_TEST_SUITE_P(All, TaskFiles, testing::ValuesIn(task_names()),
                         [](const auto& info) { return info.param; });

TaskItem item_with(int64_t gold, const std::string& answer = "") {
  TaskItem item;
  item.gold = gold;
  item.answer = answer;
  return item;
}

// The cases of the evaluation's specification: generated text, reference answer, normalized answer, verdict.
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

TEST(Answers, normalize_as_the_harness_does) {
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

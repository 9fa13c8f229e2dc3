#include "dtopp/tasks/task_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/sha256.h"
#include "tests/base/scratch_directory.h"
#include "tests/data/token_fixtures.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::tasks {
namespace {

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

TEST_F(TaskData, hashes_the_bytes_of_the_file) {
  const std::string line = R"({"context": "s", "continuation": "t"})";
  for (const std::string& text : {line + "\n", line, line + "\n" + line + "\n"}) {
    Sha256 digest;
    digest.update(text);
    EXPECT_EQ(read("lambada_openai", text).sha256, digest.hexdigest());
  }
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

TEST_F(TaskData, a_missing_or_changed_file_is_an_error) {
  const auto load = [&] { load_task(task_named("copa"), scratch_.path()); };
  EXPECT_THAT(error_of<DataError>(load),
              HasSubstr((scratch_ / "copa.jsonl.zst").string() + ": no such file"));
  data::write_bytes(scratch_ / "copa.jsonl", R"({"query": "q", "choices": ["x", "y"], "gold": 1})");
  const std::string message = error_of<DataError>(load);
  EXPECT_THAT(message, HasSubstr((scratch_ / "copa.jsonl").string()));
  EXPECT_THAT(message, HasSubstr("the task's is 595dca44dec54c84…: the file has changed"));
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

}  // namespace
}  // namespace dtopp::tasks

#include "dtopp/tasks/results.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"
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

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using testing::UnorderedElementsAre;

// Requests for `items` items in one data set.
TaskRequests requests_of(const std::string& name, size_t items = 3) {
  return {.task = task_named(name), .data_sets = {{}}, .requests = {std::vector<Request>(items)}};
}

const std::vector<Tally> kTallies = {
    {.correct = 2, .items = 3, .nll = 0.1 + 0.2, .tokens = 7, .experts = {30, 8}}};
const ordered_json kKey = {{"checkpoint", "c"}, {"tokenizer", "t"}};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

class KeptResultsTest : public testing::Test {
 protected:
  KeptResults kept(const ordered_json& key = kKey) const { return {folder_, key}; }
  void keep_copa() { kept().keep(requests_of("copa"), kTallies, "a line\n"); }
  bool finds_copa() const { return kept().find(requests_of("copa")).has_value(); }
  void put(const std::string& name, const std::string& text) {
    fs::create_directories(folder_);
    write_file_atomically(folder_ / name, text);
  }

  ScratchDirectory scratch_;
  fs::path folder_ = scratch_ / "r.json.parts";
};

TEST_F(KeptResultsTest, a_task_comes_back_to_the_last_bit_and_goes_in_the_end) {
  EXPECT_EQ(kept_results_of(scratch_ / "r.json"), folder_);
  EXPECT_FALSE(finds_copa());
  keep_copa();
  const auto found = kept().find(requests_of("copa"));
  ASSERT_TRUE(found && found->size() == 1);
  EXPECT_EQ(found->at(0).correct, 2);
  EXPECT_EQ(found->at(0).items, 3);
  EXPECT_EQ(found->at(0).nll, 0.1 + 0.2);
  EXPECT_EQ(found->at(0).experts, (ExpertUse{30, 8}));
  EXPECT_EQ(found->at(0).tokens, 7);
  EXPECT_EQ(kept().dump(task_named("copa")), "a line\n");
  EXPECT_FALSE(kept().find(requests_of("piqa")));
  kept().keep(requests_of("piqa"), kTallies, "");
  EXPECT_TRUE(kept().find(requests_of("piqa")));
  kept().remove();
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(KeptResultsTest, nothing_is_kept_where_there_is_no_place) {
  KeptResults nowhere;
  nowhere.keep(requests_of("copa"), kTallies, "a line\n");
  EXPECT_FALSE(nowhere.find(requests_of("copa")));
  nowhere.remove();
  EXPECT_TRUE(kept_results_of("").empty());
}

TEST_F(KeptResultsTest, a_task_counts_only_with_the_same_key_and_the_same_items) {
  keep_copa();
  for (const auto& other :
       {ordered_json{{"checkpoint", "c"}, {"tokenizer", "another"}}, ordered_json::object()})
    EXPECT_FALSE(kept(other).find(requests_of("copa")));
  EXPECT_FALSE(kept().find(requests_of("copa", 4)));
  TaskRequests changed = requests_of("copa");
  changed.data_sets[0].items.emplace_back();
  EXPECT_FALSE(kept().find(changed));
  EXPECT_TRUE(finds_copa());
}

// A folder of that name that dtopp did not create, with all its files.
TEST_F(KeptResultsTest, other_files_stay_and_so_does_their_folder) {
  put("notes.txt", "mine");
  put("copa.jsonl.bak", "mine");
  keep_copa();
  EXPECT_TRUE(finds_copa());
  kept().remove();
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("notes.txt", "copa.jsonl.bak"));
}

TEST_F(KeptResultsTest, files_put_into_dtopps_folder_keep_it) {
  keep_copa();
  put("notes.txt", "mine");
  kept().remove();
  EXPECT_THAT(names_in(folder_), UnorderedElementsAre("notes.txt"));
}

TEST_F(KeptResultsTest, a_stale_task_is_replaced) {
  kept({{"checkpoint", "old"}}).keep(requests_of("copa"), kTallies, "an old line\n");
  keep_copa();
  EXPECT_EQ(kept().dump(task_named("copa")), "a line\n");
  kept().remove();
  EXPECT_FALSE(fs::exists(folder_));
}

// The state that an interruption between the two files leaves.
TEST_F(KeptResultsTest, a_record_without_its_lines_counts_for_nothing_but_is_dtopps) {
  keep_copa();
  fs::remove(folder_ / "copa.jsonl");
  EXPECT_FALSE(finds_copa());
  keep_copa();
  EXPECT_TRUE(finds_copa());
  fs::remove(folder_ / "copa.jsonl");
  kept().remove();
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(KeptResultsTest, a_damaged_file_makes_it_count_for_nothing) {
  keep_copa();
  for (const std::string name : {"copa.json", "copa.jsonl"}) {
    const std::string good = read_file(folder_ / name);
    std::string damaged = good;
    damaged[good.size() / 2] ^= 1;
    put(name, damaged);
    EXPECT_FALSE(finds_copa()) << name;
    put(name, good);
  }
  EXPECT_TRUE(finds_copa());
}

// Records whose checksums are right and whose content is wrong: nothing is thrown, and no result is reused.
TEST_F(KeptResultsTest, a_record_of_another_shape_counts_for_nothing) {
  keep_copa();
  const Manifest good = read_manifest(folder_, "dtopp task result 3", "copa.json");
  const std::vector<ordered_json> wrong = {
      ordered_json(),
      7,
      ordered_json::array(),
      {{2, 3, 0.5}},
      {{2, 3, 0.5, 7, 30, 8, 1}},
      {{2, 3, 0.5, 7, 30, -8}},
      {{2, 3, 0.5, 7, 1.5, 8}},
      {{"2", 3, 0.5, 7, 30, 8}},
      {{4, 3, 0.5, 7, 30, 8}},
      {{-1, 3, 0.5, 7, 30, 8}},
      {{2, 4, 0.5, 7, 30, 8}},
      {{2, 3, nullptr, 7, 30, 8}},
      {{2, 3, 0.5, UINT64_MAX, 30, 8}},
      {{2.0, 3, 0.5, 7, 30, 8}},
      {{{"a", 1}, 3, 0.5, 7, 30, 8}},
      {{2, 3, 0.5, 7, 30, 8}, {2, 3, 0.5, 7, 30, 8}},
  };
  for (const ordered_json& tallies : wrong) {
    Manifest record = good;
    ordered_json about = ordered_json::parse(good.about);
    about["tallies"] = tallies;
    record.about = about.dump();
    put("copa.json", format_manifest(record));
    EXPECT_FALSE(finds_copa()) << tallies;
  }
  Manifest record = good;
  record.about = "[1]";
  put("copa.json", format_manifest(record));
  EXPECT_FALSE(finds_copa());
  put("copa.json", format_manifest(good));
  EXPECT_TRUE(finds_copa());
}

TEST_F(KeptResultsTest, what_cannot_be_read_counts_for_nothing) {
  fs::create_directories(folder_ / "copa.json");
  EXPECT_FALSE(finds_copa());
  fs::remove(folder_ / "copa.json");
  fs::create_symlink("copa.json", folder_ / "copa.json");
  EXPECT_FALSE(finds_copa());
}

}  // namespace

}  // namespace dtopp::tasks

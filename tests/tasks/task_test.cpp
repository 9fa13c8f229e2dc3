#include "dtopp/tasks/task.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "tests/base/scratch_directory.h"

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

}  // namespace
}  // namespace dtopp::tasks

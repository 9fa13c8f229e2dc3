#include "dtopp/tasks/kept_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "tests/base/scratch_directory.h"
#include "tests/tasks/evaluation_data.h"

namespace dtopp::tasks {
namespace {

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

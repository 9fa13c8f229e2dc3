// Tests several ranks, here threads, that save one checkpoint together.
#include <barrier>
#include <cmath>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/scratch_directory.h"
#include "tests/checkpoint/checkpoint_files.h"

namespace dtopp::checkpoint::saving_ranks_test {
namespace {

namespace fs = std::filesystem;
using checkpoint_test::names_in;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSmallShards = 48;  // three parameter files, four moment files

// State that the threads share.
struct Meeting {
  explicit Meeting(int64_t size) : texts(static_cast<size_t>(size)), barrier(size) {}
  std::vector<std::string> texts;
  std::barrier<> barrier;
};

class ThreadRank final : public SavingRanks {
 public:
  ThreadRank(Meeting& meeting, int64_t rank) : meeting_(meeting), rank_(rank) {}

  bool sees_directory = true;
  std::set<std::string> taken;  // tensors whose bytes this rank read

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(meeting_.texts.size()); }
  std::vector<std::string> gather(const std::string& text) override {
    meeting_.texts[static_cast<size_t>(rank_)] = text == "yes" && !sees_directory ? "" : text;
    meeting_.barrier.arrive_and_wait();
    auto all = meeting_.texts;
    meeting_.barrier.arrive_and_wait();
    return all;
  }
  void collect(const std::vector<TensorByteRange>& by_rank, const TakeBytes& take) override {
    std::string wanted;
    for (const TensorByteRange& range : by_rank)
      wanted += range.tensor ? range.tensor->name + " " + std::to_string(range.begin) + "; " : "; ";
    for (const std::string& other : gather(wanted)) EXPECT_EQ(other, wanted);
    const TensorByteRange& mine = by_rank.at(static_cast<size_t>(rank_));
    if (!mine.tensor) return;
    taken.insert(mine.tensor->name);
    mine.tensor->read(mine.begin, mine.count, take);
  }
  void check(const std::exception_ptr& error) override {
    const auto failed = gather(error ? "failed" : "");
    if (error) std::rethrow_exception(error);
    for (size_t rank = 0; rank < failed.size(); ++rank)
      if (!failed[rank].empty()) throw ResourceError("rank " + std::to_string(rank) + " failed");
  }

 private:
  Meeting& meeting_;
  int64_t rank_;
};

// Runs body(rank) in one thread per rank and returns each thread's error message, empty if there was no
// error.
template <class Body>
std::vector<std::string> on_ranks(int64_t size, const Body& body) {
  Meeting meeting(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      ThreadRank self(meeting, rank);
      try {
        body(self);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

void expect_same_files(const fs::path& path, const fs::path& expected) {
  ASSERT_EQ(names_in(path), names_in(expected));
  for (const auto& name : names_in(path))
    EXPECT_EQ(read_file(path / name), read_file(expected / name)) << name;
}

TEST(SavingRanks, write_the_files_that_one_process_writes) {
  ScratchDirectory scratch;
  const SampleContents sample(7);
  for (const uint64_t shard_bytes : {kSmallShards, kShardBytes}) {
    const auto expected = save_checkpoint(scratch / "alone", sample.contents, 0, shard_bytes);
    for (const int64_t size : {1, 2, 3, 4, 9}) {
      SCOPED_TRACE(size);
      const auto errors = on_ranks(size, [&](ThreadRank& rank) {
        save_checkpoint(scratch / "together", sample.contents, 0, rank, shard_bytes);
      });
      EXPECT_THAT(errors, testing::Each(""));
      EXPECT_THAT(names_in(scratch / "together"), ElementsAre("step-00000007"));
      expect_same_files(scratch / "together/step-00000007", expected);
      fs::remove_all(scratch / "together");
    }
    fs::remove_all(scratch / "alone");
  }
}

TEST(SavingRanks, share_out_the_files_among_those_that_see_the_directory) {
  ScratchDirectory scratch;
  const SampleContents sample(7);
  const auto expected = save_checkpoint(scratch / "alone", sample.contents, 0, kSmallShards);
  std::vector<std::set<std::string>> taken(3);
  const auto errors = on_ranks(3, [&](ThreadRank& rank) {
    rank.sees_directory = rank.rank() == 2;  // rank 0 created the directory, whatever it answers here
    save_checkpoint(scratch / "together", sample.contents, 0, rank, kSmallShards);
    taken[static_cast<size_t>(rank.rank())] = rank.taken;
  });
  EXPECT_THAT(errors, testing::Each(""));
  EXPECT_EQ(taken[0].size(), 4u);
  EXPECT_TRUE(taken[1].empty());
  EXPECT_EQ(taken[2].size(), 3u);
  expect_same_files(scratch / "together/step-00000007", expected);
}

TEST(SavingRanks, read_nothing_of_a_checkpoint_that_is_there) {
  ScratchDirectory scratch;
  const SampleContents sample(7);
  save_checkpoint(scratch.path(), sample.contents, 0);
  const auto errors = on_ranks(2, [&](ThreadRank& rank) {
    save_checkpoint(scratch.path(), sample.contents, 0, rank);
    EXPECT_TRUE(rank.taken.empty());
  });
  EXPECT_THAT(errors, testing::Each(""));
}

// Rank 1 writes the optimizer's file.
TEST(SavingRanks, all_end_with_the_error_of_the_one_that_could_not_write) {
  ScratchDirectory scratch;
  checkpoint_test::save(scratch.path(), 10);
  SampleContents bad(20);
  bad.contents.optimizer[1].dtype = "F64";
  const auto errors = on_ranks(
      3, [&](ThreadRank& rank) { save_checkpoint(scratch.path(), bad.contents, 1, rank, kShardBytes); });
  EXPECT_THAT(errors,
              ElementsAre("rank 1 failed", HasSubstr("optimizer.safetensors: tensor"), "rank 1 failed"));
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000010"));
}

TEST(SavingRanks, all_end_with_the_error_of_rank_0) {
  ScratchDirectory scratch;
  checkpoint_test::overwrite(scratch / "file", "");
  SampleContents sample(20);
  auto errors = on_ranks(
      2, [&](ThreadRank& rank) { save_checkpoint(scratch / "file/checkpoints", sample.contents, 1, rank); });
  EXPECT_THAT(errors, ElementsAre(HasSubstr("cannot create the directory"), "rank 0 failed"));
  sample.contents.router.push_back(sample.contents.router[0]);
  errors = on_ranks(
      2, [&](ThreadRank& rank) { save_checkpoint(scratch / "checkpoints", sample.contents, 1, rank); });
  EXPECT_THAT(errors, ElementsAre(HasSubstr("router.safetensors"), "rank 0 failed"));
  EXPECT_TRUE(fs::is_empty(scratch / "checkpoints"));
}

}  // namespace
}  // namespace dtopp::checkpoint::saving_ranks_test

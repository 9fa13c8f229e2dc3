// Tests tensors whose bytes are read only when they are written.
#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dtopp/checkpoint/checkpoint.h"
#include "tests/base/scratch_directory.h"
#include "tests/checkpoint/checkpoint_contents.h"

namespace dtopp::checkpoint::checkpoint_sources_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename().string());
  return names;
}

// The parameters and moments on a device need not fit in the host's memory.
TEST(SaveCheckpoint, takes_one_tensor_after_another_and_writes_the_same_bytes) {
  ScratchDirectory scratch;
  for (const uint64_t shard_bytes : {uint64_t{48}, uint64_t{4} << 30}) {
    SampleContents sample(7);
    CheckpointContents lazy = sample.contents;
    int alive = 0, most_alive = 0, read = 0;
    for (auto* const tensors : {&lazy.parameters, &lazy.optimizer}) {
      for (TensorSource& tensor : *tensors) {
        tensor.read = [&, all = tensor.read](uint64_t begin, uint64_t count, const TakeBytes& take) {
          most_alive = std::max(most_alive, ++alive);
          ++read;
          all(begin, count, [&](std::span<const std::byte> bytes) {
            std::vector<std::byte> copy(bytes.begin(), bytes.end());
            take(copy);
            std::ranges::fill(copy, std::byte{0xff});  // a caller that kept the span sees other bytes
          });
          --alive;
        };
      }
    }
    const auto expected = save_checkpoint(scratch / "eager", sample.contents, 1, shard_bytes);
    const auto path = save_checkpoint(scratch / "lazy", lazy, 1, shard_bytes);
    EXPECT_EQ(most_alive, 1);
    EXPECT_EQ(read, 7);
    ASSERT_EQ(names_in(path), names_in(expected));
    for (const auto& name : names_in(path)) EXPECT_EQ(read_file(path / name), read_file(expected / name));
    fs::remove_all(scratch / "eager");
    fs::remove_all(scratch / "lazy");
  }
}

TEST(SaveCheckpoint, whose_tensor_cannot_be_read_leaves_what_was_there) {
  ScratchDirectory scratch;
  save_checkpoint(scratch.path(), SampleContents(10).contents, 1);
  SampleContents bad(20);
  bad.contents.optimizer[1].read = [](uint64_t, uint64_t, const TakeBytes&) {
    throw std::runtime_error("the device is gone");
  };
  EXPECT_THAT(error_of<std::runtime_error>([&] { save_checkpoint(scratch.path(), bad.contents, 1); }),
              HasSubstr("the device is gone"));
  EXPECT_THAT(names_in(scratch.path()), ElementsAre("step-00000010"));
}

}  // namespace
}  // namespace dtopp::checkpoint::checkpoint_sources_test

#include "dtopp/ops/core/host_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dtopp::ops {
namespace {

using ::testing::ElementsAre;

std::vector<size_t> pieces_of(const at::Tensor& tensor, int64_t piece_bytes) {
  std::vector<size_t> sizes;
  copy_to_bytes(
      tensor, [&](std::span<const std::byte> bytes) { sizes.push_back(bytes.size()); }, piece_bytes);
  return sizes;
}

TEST(CopyToBytes, gives_pieces_no_larger_than_asked_for) {
  const at::Tensor tensor = at::zeros({5, 2});
  EXPECT_THAT(pieces_of(tensor, 16), ElementsAre(16, 16, 8));
  EXPECT_THAT(pieces_of(tensor, 15), ElementsAre(12, 12, 12, 4));
  EXPECT_THAT(pieces_of(tensor, 40), ElementsAre(40));
  EXPECT_THAT(pieces_of(at::zeros({}), 40), ElementsAre(4));
  EXPECT_THROW(pieces_of(tensor, 3), c10::Error);
}

TEST(CopyToBytes, copies_nothing_on_a_cpu) {
  const at::Tensor tensor = at::randn({7, 3});
  const auto* const begin = static_cast<const std::byte*>(tensor.const_data_ptr());
  size_t position = 0;
  const auto take = [&](std::span<const std::byte> bytes) {
    EXPECT_EQ(bytes.data(), begin + position);
    position += bytes.size();
  };
  copy_to_bytes(tensor, take, /*piece_bytes=*/20);
  EXPECT_EQ(position, tensor.nbytes());
}

TEST(CopyToBytes, gives_what_copy_from_bytes_takes) {
  const at::Tensor tensor = at::randn({4, 5});
  std::vector<std::byte> bytes;
  copy_to_bytes(
      tensor,
      [&](std::span<const std::byte> piece) { bytes.insert(bytes.end(), piece.begin(), piece.end()); },
      /*piece_bytes=*/24);
  const at::Tensor copy = at::empty_like(tensor);
  copy_from_bytes(bytes, copy);
  EXPECT_TRUE(at::equal(copy, tensor));
}

TEST(CopyToBytes, of_no_elements_holds_no_bytes) {
  size_t total = 0;
  copy_to_bytes(at::zeros({0, 4}), [&](std::span<const std::byte> bytes) { total += bytes.size(); });
  EXPECT_EQ(total, 0U);
}

TEST(HostSnapshot, keeps_what_the_tensors_held_when_it_was_taken) {
  const std::vector<at::Tensor> tensors = {at::randn({4, 5}), at::zeros({0}), at::randn({70000})};
  HostSnapshot snapshot(tensors);
  for (int round = 0; round < 2; ++round) {
    const std::vector<at::Tensor> expected = {tensors[0].clone(), tensors[1].clone(), tensors[2].clone()};
    snapshot.take(tensors);
    for (const at::Tensor& tensor : tensors) tensor.add_(1);
    for (size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(snapshot.get()[i].equal(expected[i]));
  }
}

}  // namespace
}  // namespace dtopp::ops

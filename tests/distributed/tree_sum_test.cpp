#include "dtopp/distributed/tree_sum.h"

#include <bit>
#include <optional>
#include <random>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace dtopp::distributed {
namespace {

constexpr int64_t kWidth = 12;  // elements per leaf; divisible by 1, 2, 3 and 4 ranks

using Leaf = std::optional<std::vector<float>>;  // nullopt: the leaf is absent

// Leaves of such mixed magnitudes that almost any other order gives other bits. They include zeros of both
// signs.
std::vector<Leaf> random_leaves(int64_t count, bool some_absent, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Leaf> leaves(static_cast<size_t>(count));
  for (Leaf& leaf : leaves) {
    if (some_absent && random() % 4 == 0) continue;
    leaf.emplace(kWidth);
    for (float& value : *leaf) {
      const float magnitude =
          std::ldexp(static_cast<float>(random() % 1000003), static_cast<int>(random() % 12));
      value = random() % 3 == 0 ? 0.0F : magnitude;
      if (random() % 2 == 0) value = -value;
    }
  }
  return leaves;
}

// The definition in scalars: a node is the sum of its present halves.
std::optional<float> node(const std::vector<Leaf>& leaves, size_t element, size_t begin, size_t width) {
  if (begin >= leaves.size()) return std::nullopt;
  if (width == 1) return leaves[begin] ? std::optional((*leaves[begin])[element]) : std::nullopt;
  const auto left = node(leaves, element, begin, width / 2);
  const auto right = node(leaves, element, begin + width / 2, width / 2);
  return left && right ? std::optional(*left + *right) : left ? left : right;
}

std::vector<uint32_t> expected_bits(const std::vector<Leaf>& leaves) {
  std::vector<uint32_t> bits;
  for (size_t element = 0; element < kWidth; ++element)
    bits.push_back(std::bit_cast<uint32_t>(
        node(leaves, element, 0, std::bit_ceil(leaves.size())).value_or(static_cast<float>(kNothing))));
  return bits;
}

at::Tensor tensor_of(const Leaf& leaf) { return leaf ? at::tensor(*leaf) : at::Tensor(); }
at::Tensor something(const at::Tensor& sum) { return sum.defined() ? sum : at::full({kWidth}, kNothing); }

std::vector<uint32_t> bits_of(const at::Tensor& sum) {
  const at::Tensor whole = something(sum).contiguous();
  const auto* values = whole.const_data_ptr<float>();
  std::vector<uint32_t> bits;
  for (int64_t i = 0; i < whole.numel(); ++i) bits.push_back(std::bit_cast<uint32_t>(values[i]));
  return bits;
}

// A rank's partial sum. Either the accumulator or its caller adds to the leaf that waits.
at::Tensor sum_of_block(const std::vector<Leaf>& leaves, int64_t rank, int64_t size) {
  const MicroBatchRange range = local_micro_batches(static_cast<int64_t>(leaves.size()), rank, size);
  TreeAccumulator accumulator;
  for (int64_t leaf = range.begin; leaf < range.end; ++leaf) {
    const at::Tensor next = tensor_of(leaves[static_cast<size_t>(leaf)]);
    if (const at::Tensor waiting = accumulator.waiting();
        waiting.defined() && next.defined() && leaf % 4 > 1) {
      waiting.add_(next);
      accumulator.added();
    } else {
      accumulator.add(next);
    }
  }
  return accumulator.finish();
}

TEST(TreeSum, adds_in_pairs_of_pairs) {
  const auto leaf = [](float value) { return at::full({1}, value); };
  // 2^24 + 1 rounds to 2^24 in f32. ((2^24 + 1) + (1 + 1)) + (1 + 1) gives 2^24 + 4; adding one by one gives
  // 2^24.
  const float large = 16777216.0F;
  EXPECT_EQ(tree_sum({leaf(large), leaf(1), leaf(1), leaf(1), leaf(1), leaf(1)}).item<float>(), large + 4);
  EXPECT_EQ(tree_sum({leaf(1), leaf(1), leaf(large)}).item<float>(), large + 2);
  EXPECT_EQ(tree_sum({leaf(3)}).item<float>(), 3);
  EXPECT_FALSE(tree_sum({}).defined());
  EXPECT_FALSE(tree_sum({at::Tensor(), at::Tensor(), at::Tensor()}).defined());
}

RC_GTEST_PROP(TreeSum, follows_its_definition_and_leaves_its_leaves, ()) {
  const auto leaves =
      random_leaves(*rc::gen::inRange(1, 20), *rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<uint64_t>());
  std::vector<at::Tensor> tensors;
  for (const Leaf& leaf : leaves) tensors.push_back(tensor_of(leaf));
  RC_ASSERT(bits_of(tree_sum(tensors)) == expected_bits(leaves));
  for (size_t i = 0; i < leaves.size(); ++i)
    if (leaves[i]) RC_ASSERT(tensors[i].equal(tensor_of(leaves[i])));
}

RC_GTEST_PROP(TreeSum, over_ranks_of_sums_of_their_leaves_is_the_sum_of_all, ()) {
  const int64_t size = *rc::gen::inRange(1, 9);
  const auto leaves =
      random_leaves(*rc::gen::inRange(1, 36), *rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<uint64_t>());
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < size; ++rank) parts.push_back(something(sum_of_block(leaves, rank, size)));
  RC_ASSERT(bits_of(tree_sum(parts)) == expected_bits(leaves));
}

TEST(TreeSum, differs_from_a_sum_one_after_another) {
  const auto leaves = random_leaves(8, false, 1);
  at::Tensor sum = at::zeros({kWidth});
  for (const Leaf& leaf : leaves) sum = sum + tensor_of(leaf);
  EXPECT_NE(bits_of(sum), expected_bits(leaves));
}

TEST(MicroBatchRange, is_aligned_and_covers_every_leaf_once) {
  const auto owned = [](int64_t leaves, int64_t size) {
    std::vector<int64_t> counts;
    int64_t next = 0;
    for (int64_t rank = 0; rank < size; ++rank) {
      const MicroBatchRange range = local_micro_batches(leaves, rank, size);
      EXPECT_EQ(range.begin, next);
      next = range.end;
      counts.push_back(range.end - range.begin);
    }
    EXPECT_EQ(next, leaves);
    return counts;
  };
  EXPECT_EQ(owned(6, 4), (std::vector<int64_t>{2, 2, 2, 0}));
  EXPECT_EQ(owned(8, 4), (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(owned(5, 2), (std::vector<int64_t>{4, 1}));
  EXPECT_EQ(owned(3, 4), (std::vector<int64_t>{1, 1, 1, 0}));
  EXPECT_EQ(owned(4, 3), (std::vector<int64_t>{2, 2, 0}));
  EXPECT_EQ(owned(7, 1), (std::vector<int64_t>{7}));
  EXPECT_EQ(local_micro_batches(6, 0, 2, 4).end, 4);  // two blocks of four ranks
  EXPECT_EQ(local_micro_batches(6, 1, 2, 4).end, 6);
  EXPECT_EQ(local_micro_batches(9, 1, 2, 2).begin, 8);
}

TEST(TreeAccumulator, holds_no_more_leaves_than_the_tree_is_deep) {
  for (const int64_t count : {1, 2, 3, 4, 7, 8, 13, 64}) {
    TreeAccumulator accumulator;
    std::vector<at::Tensor> leaves;
    const auto held = [&] {
      return std::count_if(leaves.begin(), leaves.end(),
                           [](const at::Tensor& leaf) { return leaf.use_count() > 1; });
    };
    for (int64_t leaf = 0; leaf < count; ++leaf) {
      leaves.push_back(at::ones({1}));
      accumulator.add(leaves.back());
      EXPECT_LE(held(), std::max<int64_t>(1, std::bit_width(static_cast<uint64_t>(count - 1)))) << count;
    }
    EXPECT_EQ(accumulator.finish().item<float>(), static_cast<float>(count));
    EXPECT_EQ(held(), 0);
    EXPECT_FALSE(accumulator.finish().defined());
  }
}

}  // namespace

}  // namespace dtopp::distributed

#include "dtopp/base/random.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace dtopp {
namespace {

using Words = std::array<uint32_t, 4>;

// From kat_vectors of Random123 1.14, philox 4x32 with 10 rounds.
TEST(Philox, gives_the_published_known_answers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomStream, is_a_pure_function_of_seed_purpose_and_index) {
  const RandomStream stream(7, "a");
  EXPECT_EQ(stream.bits(5), RandomStream(7, "a").bits(5));
  EXPECT_NE(stream.bits(5), stream.bits(6));
  EXPECT_NE(stream.bits(5), RandomStream(7, "b").bits(5));
  EXPECT_NE(stream.bits(5), RandomStream(8, "a").bits(5));
}

TEST(RandomStream, uses_all_64_bits_of_the_index) {
  const RandomStream stream(7, "a");
  std::set<Words> seen;
  for (unsigned bit = 0; bit < 64; ++bit) seen.insert(stream.bits(uint64_t{1} << bit));
  EXPECT_EQ(seen.size(), 64U);
}

// χ² over 64 cells has 63 degrees of freedom: mean 63, standard deviation √126 = 11.2. A correct generator
// exceeds six standard deviations once in 10⁷; the draws of this one are fixed.
double chi_squared(const std::vector<uint64_t>& cells, uint64_t draws) {
  const double expected = static_cast<double>(draws) / static_cast<double>(cells.size());
  double sum = 0;
  for (const uint64_t cell : cells) sum += std::pow(static_cast<double>(cell) - expected, 2) / expected;
  return sum;
}

// A row of the table has the values that it has when it is drawn alone.
TEST(RandomStream, normals_are_normal_and_rows_of_one_table) {
  constexpr size_t kRow = 3071, kRows = 100;  // not a multiple of four
  const RandomStream stream(1, "normality");
  std::vector<float> all;
  for (size_t row = 0; row < kRows; ++row) {
    std::vector<float> values(kRow);
    stream.normals(row, values);
    all.insert(all.end(), values.begin(), values.end());
  }
  std::array<double, 4> moments{};
  for (const float value : all) {
    for (size_t power = 0; power < 4; ++power) moments[power] += std::pow(value, power + 1);
  }
  for (double& moment : moments) moment /= static_cast<double>(all.size());
  // Six standard deviations of the mean of x^n over 307,100 draws: sqrt((E x^2n - (E x^n)^2) / draws).
  const auto near = [&](double moment, double expected, double variance) {
    EXPECT_NEAR(moment, expected, 6 * std::sqrt(variance / static_cast<double>(all.size())));
  };
  near(moments[0], 0, 1);
  near(moments[1], 1, 2);
  near(moments[2], 0, 15);
  near(moments[3], 3, 96);
  EXPECT_EQ(std::set<float>(all.begin(), all.end()).size() > all.size() * 9 / 10, true);
  // Neighbors in a row and in a column are uncorrelated.
  double beside = 0, below = 0;
  for (size_t i = 0; i + kRow < all.size(); ++i) {
    beside += all[i] * all[i + 1];
    below += all[i] * all[i + kRow];
  }
  EXPECT_LT(std::abs(beside), 6 * std::sqrt(static_cast<double>(all.size())));
  EXPECT_LT(std::abs(below), 6 * std::sqrt(static_cast<double>(all.size())));
}

TEST(RandomStream, draws_are_uniform) {
  constexpr uint64_t kDraws = 200000;
  const RandomStream stream(1, "uniformity");
  std::vector<uint64_t> cells(64);
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double value = stream.uniform(i);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    ++cells[static_cast<size_t>(value * 64)];
  }
  EXPECT_LT(chi_squared(cells, kDraws), 63 + 6 * 11.2);
}

TEST(Permutation, is_a_bijection_of_every_small_size) {
  for (uint64_t size = 1; size <= 300; ++size) {
    const Permutation permutation(RandomStream(3, "p"), 2, size);
    std::vector<bool> hit(size);
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t to = permutation(i);
      ASSERT_LT(to, size);
      ASSERT_FALSE(hit[to]) << "size " << size << " hits " << to << " twice";
      hit[to] = true;
    }
  }
}

RC_GTEST_PROP(Permutation, is_a_bijection, ()) {
  const auto size = *rc::gen::inRange<uint64_t>(1, 20000);
  const Permutation permutation(RandomStream(*rc::gen::arbitrary<uint64_t>(), "p"),
                                *rc::gen::inRange<uint64_t>(0, uint64_t{1} << 34), size);
  std::vector<uint64_t> image(size);
  for (uint64_t i = 0; i < size; ++i) image[i] = permutation(i);
  std::sort(image.begin(), image.end());
  std::vector<uint64_t> identity(size);
  std::iota(identity.begin(), identity.end(), 0);
  RC_ASSERT(image == identity);
}

TEST(Permutation, reaches_far_positions_of_a_large_size) {
  const uint64_t size = (uint64_t{1} << 52) - 12345;
  const Permutation permutation(RandomStream(3, "p"), 0, size);
  std::set<uint64_t> image;
  for (uint64_t i = 0; i < 1000; ++i) image.insert(permutation(size - 1 - i));
  EXPECT_EQ(image.size(), 1000U);
  EXPECT_LT(*image.rbegin(), size);
}

// The test uses 64 windows. Below about 32 the Feistel halves are so short that pairs are not quite uniform.
TEST(Permutation, places_and_neighbors_are_uniform_over_epochs) {
  constexpr uint64_t kEpochs = 64000;
  const RandomStream stream(5, "epochs");
  std::vector<uint64_t> places(64);       // positions of index 0
  std::vector<uint64_t> differences(63);  // from the index at position 0 to the index at position 1
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const Permutation permutation(stream, epoch, 64);
    const uint64_t first = permutation(0);
    ++places[first];
    ++differences.at((permutation(1) + 64 - first) % 64 - 1);
  }
  EXPECT_LT(chi_squared(places, kEpochs), 63 + 6 * 11.2);
  EXPECT_LT(chi_squared(differences, kEpochs), 62 + 6 * 11.2);
}

TEST(Permutation, differs_between_epochs_and_seeds) {
  const auto order = [](uint64_t seed, uint64_t epoch) {
    const Permutation permutation(RandomStream(seed, "p"), epoch, 1000);
    std::vector<uint64_t> image;
    for (uint64_t i = 0; i < 1000; ++i) image.push_back(permutation(i));
    return image;
  };
  EXPECT_EQ(order(1, 0), order(1, 0));
  EXPECT_NE(order(1, 0), order(1, 1));
  EXPECT_NE(order(1, 0), order(2, 0));
}

TEST(Permutation, refuses_what_it_cannot_permute) {
  EXPECT_THROW(Permutation(RandomStream(1, "p"), 0, 0), std::invalid_argument);
  EXPECT_THROW(Permutation(RandomStream(1, "p"), 0, (uint64_t{1} << 52) + 1), std::invalid_argument);
  EXPECT_THROW(Permutation(RandomStream(1, "p"), 0, 5)(5), std::out_of_range);
}

}  // namespace
}  // namespace dtopp

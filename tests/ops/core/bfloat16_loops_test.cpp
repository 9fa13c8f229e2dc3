// Tests every loop in every kind. The file is long because all of them share the kinds and the numbers.
#include "dtopp/ops/core/bfloat16_loops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include <gtest/gtest.h>

namespace dtopp::ops::bfloat16_loops_test {
namespace {

const Bfloat16Loops& kScalar = *all_bfloat16_loops().front();

// The AVX-512 loops as the compiler generates them for this machine.
namespace in_registers {
#include "dtopp/ops/core/bfloat16_registers.h"
}

// Those loops, and all kinds that this machine runs natively.
std::vector<const Bfloat16Loops*> every_kind() {
  std::vector<const Bfloat16Loops*> kinds = all_bfloat16_loops();
  kinds.push_back(&in_registers::kLoops);
  return kinds;
}

template <typename Body>
void for_every_kind(const Body& body) {
  for (const Bfloat16Loops* loops : every_kind()) {
    SCOPED_TRACE(loops->instructions);
    body(*loops);
  }
}

using Numbers = std::vector<c10::BFloat16>;
constexpr uint16_t kUntouched = 0xABCD;

c10::BFloat16 of_bits(uint16_t bits) { return {bits, c10::BFloat16::from_bits()}; }

Numbers untouched(int64_t count) { return Numbers(count, of_bits(kUntouched)); }

// Any 16 bits are valid, because packing only moves them.
Numbers any_bits(int64_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  Numbers numbers(count);
  for (auto& number : numbers) number.x = static_cast<uint16_t>(random());
  return numbers;
}

std::vector<uint16_t> bits_of(const Numbers& numbers) {
  std::vector<uint16_t> bits;
  bits.reserve(numbers.size());
  for (const auto number : numbers) bits.push_back(number.x);
  return bits;
}

TEST(Bfloat16Loops, pack_columns_of_a_left_side) {
  for_every_kind([](const Bfloat16Loops& loops) {
    for (const int64_t M : {0, 1, 7, 8, 9, 16, 40, 131}) {
      for (const int64_t present : {1, 2, 17, 31, 32}) {
        for (const int64_t stride : {32, 35, 96}) {
          // Columns lie anywhere, in no order, and at odd addresses.
          const Numbers from = any_bits(kPackedDepth * (M + 13) + 1);
          std::vector<const c10::BFloat16*> columns;
          for (int64_t k = 0; k < present; ++k) columns.push_back(from.data() + (k * 7 % 32) * (M + 13) + 1);
          Numbers packed = untouched(M * stride + 40), expected = packed;
          for (int64_t m = 0; m < M; ++m) {
            for (int64_t k = 0; k < kPackedDepth; ++k) {
              expected[m * stride + k] = k < present ? columns[k][m] : of_bits(0);
            }
          }
          loops.pack_left_columns(columns.data(), present, M, packed.data(), stride);
          EXPECT_EQ(bits_of(packed), bits_of(expected))
              << M << " x " << present << ", " << stride << " apart";
        }
      }
    }
  });
}

TEST(Bfloat16Loops, pack_rows_of_a_right_side) {
  for_every_kind([](const Bfloat16Loops& loops) {
    for (const int64_t columns : {0, 1, 31, 32, 63, 64, 65, 128, 200}) {
      for (const int64_t step : {128, 130, 640}) {
        for (const bool has_odd : {false, true}) {
          const Numbers even = any_bits(columns + 1), odd = any_bits(columns + 2);
          Numbers packed = untouched((columns / 64 + 1) * step + 128), expected = packed;
          for (int64_t n = 0; n < (columns + 63) / 64 * 64; ++n) {
            c10::BFloat16* to = expected.data() + n / 64 * step + n % 64 * 2;
            to[0] = n < columns ? even[n + 1] : of_bits(0);
            to[1] = n < columns && has_odd ? odd[n + 2] : of_bits(0);
          }
          loops.pack_right_rows(even.data() + 1, has_odd ? odd.data() + 2 : nullptr, columns, packed.data(),
                                step);
          EXPECT_EQ(bits_of(packed), bits_of(expected)) << columns << " columns, panels " << step << " apart";
        }
      }
    }
  });
}

TEST(Bfloat16Loops, pack_a_right_side_from_its_transpose) {
  for_every_kind([](const Bfloat16Loops& loops) {
    for (const int64_t K : {0, 1, 7, 8, 9, 24, 31, 32, 33, 64, 75, 512}) {
      for (const int64_t columns : {0, 1, 9, 15, 16}) {
        for (const int64_t stride : {K, K + 5}) {
          const int64_t depth = (K + 31) / 32 * 32;
          const Numbers rows = any_bits(16 * stride + 1);
          Numbers packed = untouched(depth * 64 + 32), expected = packed;
          for (int64_t k = 0; k < depth; ++k) {
            for (int64_t n = 0; n < 16; ++n) {
              expected[k / 2 * 128 + 2 * n + k % 2] =
                  n < columns && k < K ? rows[n * stride + k + 1] : of_bits(0);
            }
          }
          loops.pack_right_transposed(rows.data() + 1, stride, columns, K, packed.data());
          EXPECT_EQ(bits_of(packed), bits_of(expected))
              << K << " x " << columns << ", " << stride << " apart";
        }
      }
    }
  });
}

// Ties, the largest numbers, overflowing numbers, infinities and NaN among ordinary numbers.
std::vector<float> difficult_floats() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> numbers = {0.0F,        -0.0F,      1.0F,          -1.0F,          1.00390625F,
                                1.01171875F, 1.0039063F, 3.4e38F,       3.3895314e38F,  1.2e-38F,
                                kInfinity,   -kInfinity, std::nanf(""), -std::nanf("7")};
  std::mt19937 random(5);
  while (numbers.size() < 133) numbers.push_back(std::ldexp(static_cast<float>(random()), -30));
  return numbers;
}

// The value that c10 rounds to. NaN has many bit patterns, and AVX512_BF16 treats numbers below 2^-126 as
// zero.
void expect_rounded(c10::BFloat16 actual, float exact) {
  if (std::isnan(exact)) {
    EXPECT_TRUE(std::isnan(static_cast<float>(actual)));
  } else if (std::fpclassify(exact) == FP_SUBNORMAL && static_cast<float>(actual) == 0) {
    EXPECT_EQ(std::signbit(static_cast<float>(actual)), std::signbit(exact));
  } else {
    EXPECT_EQ(actual.x, c10::BFloat16(exact).x) << exact;
  }
}

TEST(Bfloat16Loops, round_to_nearest_even) {
  const std::vector<float> from = difficult_floats();
  for_every_kind([&](const Bfloat16Loops& loops) {
    for (const int64_t count : {0, 1, 31, 32, 33, 100, 133}) {
      Numbers to = untouched(count + 1);
      loops.convert(from.data(), to.data(), count);
      for (int64_t i = 0; i < count; ++i) expect_rounded(to[i], from[i]);
      EXPECT_EQ(to[count].x, kUntouched);
      const Numbers half(to.begin(), to.end() - 1);
      loops.convert_scaled(half.data(), -0.3F, to.data(), count);
      for (int64_t i = 0; i < count; ++i) expect_rounded(to[i], -0.3F * static_cast<float>(half[i]));
      EXPECT_EQ(to[count].x, kUntouched);
    }
  });
}

// The bound is half a unit in the last of 8 bits, plus float's own rounding. Values below 2^-126 may be lost.
void expect_near(double actual, double exact) {
  EXPECT_LE(std::abs(actual - exact), std::abs(exact) * (1.0 / 256 + 1e-5) + 1e-35);
}

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

std::vector<float> normal_floats(int64_t count, float scale) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = normal(random);
  return numbers;
}

TEST(Bfloat16Loops, activate_a_tile) {
  std::vector<float> tile = normal_floats(128 * kPanelColumns, 3);
  for (const float gate : {-1000.0F, -100.0F, -88.5F, -87.0F, 0.0F, 87.0F, 100.0F, 1000.0F}) {
    tile[static_cast<size_t>(std::abs(gate)) % 5 * kPanelColumns + 3] = gate;
  }
  for_every_kind([&](const Bfloat16Loops& loops) {
    for (const int64_t rows : {0, 1, 128}) {
      for (const int64_t columns : {1, 31, 32}) {
        constexpr int64_t kFfn = 50, kStride = 64;
        Numbers act = untouched(rows * kStride + 32), saved = untouched(rows * 2 * kFfn + 1);
        loops.swiglu(tile.data(), rows, columns, act.data(), kStride, saved.data(), 2 * kFfn, kFfn);
        for (int64_t n = 0; n < rows; ++n) {
          for (int64_t f = 0; f < kStride; ++f) {
            if (f >= columns) {
              EXPECT_EQ(act[n * kStride + f].x, kUntouched);
              continue;
            }
            const float gate = tile[n * kPanelColumns + f], up = tile[n * kPanelColumns + 32 + f];
            expect_near(act[n * kStride + f], gate * sigmoid_of(gate) * up);
            expect_rounded(saved[n * 2 * kFfn + f], gate);
            expect_rounded(saved[n * 2 * kFfn + kFfn + f], up);
          }
        }
        EXPECT_EQ(saved.back().x, kUntouched);
        Numbers again = untouched(act.size());
        loops.swiglu(tile.data(), rows, columns, again.data(), kStride, nullptr, 0, kFfn);
        EXPECT_EQ(bits_of(again), bits_of(act));
      }
    }
  });
}

TEST(Bfloat16Loops, keep_what_is_not_a_number) {
  std::vector<float> tile(kPanelColumns, 1.0F);
  tile[5] = tile[40] = std::nanf("");
  for_every_kind([&](const Bfloat16Loops& loops) {
    Numbers act = untouched(32);
    loops.swiglu(tile.data(), 1, 32, act.data(), 32, nullptr, 0, 32);
    for (int64_t f = 0; f < 32; ++f) EXPECT_EQ(std::isnan(static_cast<float>(act[f])), f == 5 || f == 8);
  });
}

TEST(Bfloat16Loops, derive_a_tile) {
  constexpr int64_t kRows = 5, kFfn = 70, kStride = 2 * kFfn + 3;
  const std::vector<float> tile = normal_floats(kRows * kPanelColumns, 1),
                           gates = normal_floats(kRows * 3, 1);
  const std::vector<int64_t> tokens = {4, 0, 2, 1, 3};
  Numbers pre;
  for (const float x : normal_floats(kRows * kStride, 3)) pre.emplace_back(x);
  for_every_kind([&](const Bfloat16Loops& loops) {
    for (const int64_t columns : {1, 63, 64}) {
      Numbers d_pre = untouched(kRows * kStride), scaled = untouched(kRows * kFfn);
      std::vector<float> grad_gates(kRows, 0.5F);
      loops.swiglu_gradients(tile.data(), kRows, columns,
                             {pre.data(), kStride, kFfn, d_pre.data(), kStride, scaled.data(), kFfn,
                              gates.data() + 1, 3, tokens.data(), grad_gates.data()});
      for (int64_t n = 0; n < kRows; ++n) {
        const double r = gates[tokens[n] * 3 + 1];
        double grad_gate = 0.5;
        for (int64_t f = 0; f < columns; ++f) {
          const double gate = static_cast<float>(pre[n * kStride + f]), da = tile[n * kPanelColumns + f];
          const double up = static_cast<float>(pre[n * kStride + kFfn + f]), sig = sigmoid_of(gate);
          grad_gate += da * gate * sig * up;
          expect_near(scaled[n * kFfn + f], r * gate * sig * up);
          expect_near(d_pre[n * kStride + f], r * da * up * (sig + gate * sig * (1 - sig)));
          expect_near(d_pre[n * kStride + kFfn + f], r * da * gate * sig);
        }
        EXPECT_NEAR(grad_gates[n], grad_gate, 1e-4);
        EXPECT_EQ(d_pre[n * kStride + 2 * kFfn].x, kUntouched);
        EXPECT_EQ(scaled[n * kFfn + columns].x, kUntouched);
      }
    }
  });
}

TEST(Bfloat16Loops, softmax_of_a_row) {
  constexpr int64_t kPadded = 96;
  constexpr float kScale = 0.7F;
  for_every_kind([&](const Bfloat16Loops& loops) {
    for (const int64_t count : {1, 31, 32, 33, 90}) {
      for (const float before : {-std::numeric_limits<float>::infinity(), -2.0F, 50.0F}) {
        const std::vector<float> original = normal_floats(kPadded, 8);
        std::vector<float> scores = original;
        Numbers weights = untouched(kPadded + 1);
        float highest = before;
        const float sum = loops.softmax(scores.data(), count, kPadded, kScale, highest, weights.data());
        EXPECT_EQ(highest, std::max(before, *std::max_element(original.begin(), original.begin() + count)));
        double expected = 0;
        for (int64_t i = 0; i < count; ++i) {
          const double weight = std::exp2(kScale * (static_cast<double>(original[i]) - highest));
          expect_near(weights[i], weight);
          expected += weight;
        }
        EXPECT_NEAR(sum, expected, 1e-5 * expected);
        for (int64_t i = count; i < kPadded; ++i) EXPECT_EQ(weights[i].x, 0);
        EXPECT_EQ(weights[kPadded].x, kUntouched);
      }
    }
    std::vector<float> scores(32, 1.0F);
    scores[7] = std::nanf("");
    float highest = 0;
    Numbers weights = untouched(32);
    EXPECT_TRUE(std::isnan(loops.softmax(scores.data(), 32, 32, 1, highest, weights.data())));
  });
}

TEST(Bfloat16Loops, derive_a_tile_of_scores) {
  constexpr int64_t kRows = 60, kStride = kPanelColumns + 5;
  constexpr float kScale = 0.3F;
  const std::vector<float> tile = normal_floats(kRows * kPanelColumns, 4),
                           d_tile = normal_floats(kRows * kPanelColumns + 7, 1),
                           means = normal_floats(kPanelColumns, 0.5);
  std::vector<float> logsumexp = normal_floats(kPanelColumns, 1);
  for (float& sum : logsumexp) sum += 8;
  for_every_kind([&](const Bfloat16Loops& loops) {
    for (const bool diagonal : {false, true}) {
      Numbers weights = untouched(kRows * kStride), d_scores = weights;
      loops.softmax_gradients(
          tile.data(), d_tile.data() + 7, kRows,
          {logsumexp.data(), means.data(), kScale, diagonal, weights.data(), d_scores.data(), kStride});
      for (int64_t j = 0; j < kRows; ++j) {
        for (int64_t i = 0; i < kPanelColumns; ++i) {
          const int64_t at = j * kPanelColumns + i;
          const double weight = diagonal && i < j ? 0
                                                  : std::exp2(kScale * std::log2(std::exp(1.0)) * tile[at] -
                                                              static_cast<double>(logsumexp[i]));
          expect_near(weights[j * kStride + i], weight);
          expect_near(d_scores[j * kStride + i],
                      kScale * weight * (static_cast<double>(d_tile[at + 7]) - means[i]));
        }
        EXPECT_EQ(weights[j * kStride + kPanelColumns].x, kUntouched);
      }
    }
  });
}

TEST(Bfloat16Loops, add_rows_of_a_tile_to_their_tokens) {
  constexpr int64_t kRows = 21, kTokens = 40, kStride = 70;
  const std::vector<float> tile = normal_floats(kRows * kPanelColumns, 1),
                           gates = normal_floats(kTokens * 2, 1);
  std::vector<int64_t> tokens;
  for (int64_t n = 0; n < kRows; ++n) tokens.push_back((n * 11 + 3) % kTokens);
  for_every_kind([&](const Bfloat16Loops& loops) {
    for (const int64_t columns : {1, 63, 64}) {
      for (const float* gate : {static_cast<const float*>(nullptr), gates.data() + 1}) {
        std::vector<float> y(kTokens * kStride, 2.0F), expected = y;
        for (int64_t n = 0; n < kRows; ++n) {
          for (int64_t i = 0; i < columns; ++i) {
            expected[tokens[n] * kStride + i] +=
                (gate == nullptr ? 1 : gate[tokens[n] * 2]) * tile[n * kPanelColumns + i];
          }
        }
        loops.add_rows(tile.data(), kRows, columns, {y.data(), kStride, tokens.data(), gate, 2});
        for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], expected[i], 1e-5);
      }
    }
  });
}

}  // namespace
}  // namespace dtopp::ops::bfloat16_loops_test

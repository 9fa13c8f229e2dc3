// Tests the errors that the host simulation of asynchronous copies and products must detect.
#include <array>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ops/cuda/cuda_on_host.h"

namespace dtopp::ops::cuda_on_host::async_test {
namespace {

constexpr int kThreads = 128;
constexpr size_t kSharedBytes = 64 << 10;
constexpr uint32_t kLeft = 0, kRight = 8 << 10, kBarrier = 60 << 10;
constexpr uint32_t kOperandBytes = (64 + 256) * 128;  // K-major rows

using testing::HasSubstr;

const std::vector<uint16_t>& ones() {
  static const std::vector<uint16_t> numbers(kOperandBytes / 2, 0x3F80);  // 1 in bf16
  return numbers;
}

void run_block(const std::function<void()>& kernel, int threads = kThreads) {
  run({"test", 1, 1, threads, kSharedBytes}, kernel);
}

std::string error_of(const std::function<void()>& kernel, int threads = kThreads) {
  try {
    run_block(kernel, threads);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// Copies both operands; each thread copies its part.
void copy_operands() {
  const auto* from = reinterpret_cast<const unsigned char*>(ones().data());
  for (uint32_t at = threadIdx.x * 16; at < kOperandBytes; at += kThreads * 16) copy_async(at, from + at, 16);
  commit_copies();
}

void fill_operands() {
  copy_operands();
  wait_for_copies<0>();
  fence_for_wgmma();
  __syncthreads();
}

// K-major with the 128-byte swizzle; groups of 8 rows lie 1,024 bytes apart.
constexpr uint64_t operand(uint32_t begin) {
  return begin >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

void begin(float (&sums)[128], bool accumulate) {
  wgmma_fence();
  wgmma<false, false>(sums, operand(kLeft), operand(kRight), accumulate);
  wgmma_commit();
}

TEST(AsyncOnHost, products_add_up) {
  std::vector<float> seen(kThreads);
  run_block([&] {
    fill_operands();
    float sums[128];
    begin(sums, false);
    begin(sums, true);
    wgmma_wait<0>();
    seen[threadIdx.x] = sums[threadIdx.x];
  });
  EXPECT_THAT(seen, testing::Each(2 * 16));
}

TEST(AsyncOnHost, a_product_of_what_is_still_being_copied_is_an_error) {
  EXPECT_THAT(error_of([] {
                copy_operands();
                __syncthreads();
                float sums[128];
                begin(sums, false);
                wgmma_wait<0>();
                wait_for_copies<0>();
              }),
              HasSubstr("still being copied"));
}

TEST(AsyncOnHost, a_product_of_what_was_not_fenced_off_is_an_error) {
  EXPECT_THAT(error_of([] {
                copy_operands();
                wait_for_copies<0>();
                __syncthreads();
                float sums[128];
                begin(sums, false);
                wgmma_wait<0>();
              }),
              HasSubstr("not fenced off"));
}

TEST(AsyncOnHost, a_copy_over_what_a_product_reads_is_an_error) {
  EXPECT_THAT(error_of([] {
                fill_operands();
                float sums[128];
                begin(sums, false);
                __syncthreads();
                if (threadIdx.x == 0) copy_async(0, ones().data(), 16);
                commit_copies();
                wgmma_wait<0>();
                wait_for_copies<0>();
              }),
              HasSubstr("a product may still read"));
}

// One warp's wait does not cover the other warps.
TEST(AsyncOnHost, a_copy_after_one_warp_has_waited_is_an_error) {
  EXPECT_THAT(error_of([] {
                fill_operands();
                float sums[128];
                begin(sums, false);
                if (threadIdx.x < 32) {
                  wgmma_wait<0>();
                  if (threadIdx.x == 0) copy_async(0, ones().data(), 16);
                  commit_copies();
                  wait_for_copies<0>();
                }
                __syncthreads();
                if (threadIdx.x >= 32) wgmma_wait<0>();
              }),
              HasSubstr("a product may still read"));
}

TEST(AsyncOnHost, sums_that_were_not_fenced_are_an_error) {
  EXPECT_THAT(error_of([] {
                fill_operands();
                float sums[128];
                wgmma<false, false>(sums, operand(kLeft), operand(kRight), false);
              }),
              HasSubstr("sums were not fenced"));
}

TEST(AsyncOnHost, threads_that_do_not_agree_are_an_error) {
  EXPECT_THAT(error_of([] {
                fill_operands();
                float sums[128];
                begin(sums, threadIdx.x == 77);
              }),
              HasSubstr("do not agree"));
}

TEST(AsyncOnHost, a_block_must_not_end_before_its_copies_and_products) {
  EXPECT_THAT(error_of([] { copy_operands(); }), HasSubstr("copies are under way"));
  EXPECT_THAT(error_of([] {
                fill_operands();
                float sums[128];
                begin(sums, false);
                if (threadIdx.x < 96) wgmma_wait<0>();
              }),
              HasSubstr("products are under way"));
}

TEST(AsyncOnHost, two_copies_to_one_place_are_an_error) {
  EXPECT_THAT(error_of([] {
                if (threadIdx.x > 0) return;
                copy_async(0, ones().data(), 16);
                copy_async(0, ones().data(), 16);
              }),
              HasSubstr("two copies"));
}

TEST(AsyncOnHost, barriers_let_through_by_phases) {
  constexpr int kPhases = 5;
  std::vector<int> order, seen;
  run_block([&] {
    if (threadIdx.x == 0) make_barrier(kBarrier, kThreads);
    __syncthreads();
    for (uint32_t phase = 0; phase < kPhases; ++phase) {
      if (threadIdx.x == 5) order.push_back(static_cast<int>(phase));
      arrive(kBarrier);
      wait_for_phase(kBarrier, phase % 2);
      if (threadIdx.x == 9) seen.push_back(static_cast<int>(order.size()));
    }
  });
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3, 4));
  // Thread 5 may be at most one phase ahead and is never behind.
  for (int phase = 0; phase < kPhases; ++phase)
    EXPECT_THAT(seen[phase] - phase, testing::AllOf(testing::Ge(1), testing::Le(2)));
}

TEST(AsyncOnHost, a_phase_that_never_ends_is_an_error) {
  EXPECT_THAT(error_of([] {
                if (threadIdx.x == 0) make_barrier(kBarrier, 2);
                __syncthreads();
                if (threadIdx.x == 0) arrive(kBarrier);
                wait_for_phase(kBarrier, 0);
              }),
              HasSubstr("not reached by all threads"));
  EXPECT_THAT(error_of([] { arrive(kBarrier); }), HasSubstr("there is no barrier"));
}

TEST(AsyncOnHost, matrices_are_read_as_rows_and_as_columns) {
  // Number r * 8 + c of each matrix lies at row r, column c.
  std::array<std::vector<uint32_t>, 2> seen;
  for (std::vector<uint32_t>& words : seen) words.resize(32 * 4);
  run_block(
      [&] {
        auto* shared = reinterpret_cast<uint16_t*>(shared_memory());
        for (unsigned n = threadIdx.x; n < 4 * 64; n += 32) shared[n] = static_cast<uint16_t>(n);
        __syncthreads();
        uint32_t words[4];
        load_matrices<false>(words, threadIdx.x * 16);
        std::copy(words, words + 4, &seen[0][threadIdx.x * 4]);
        load_matrices<true>(words, threadIdx.x * 16);
        std::copy(words, words + 4, &seen[1][threadIdx.x * 4]);
      },
      32);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t m = 0; m < 4; ++m) {
      const uint32_t row = m * 64 + lane / 4 * 8 + lane % 4 * 2, column = m * 64 + lane % 4 * 16 + lane / 4;
      EXPECT_EQ(seen[0][lane * 4 + m], row | (row + 1) << 16);
      EXPECT_EQ(seen[1][lane * 4 + m], column | (column + 8) << 16);
    }
  }
}

}  // namespace
}  // namespace dtopp::ops::cuda_on_host::async_test

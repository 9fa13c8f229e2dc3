// Tests the errors that cuda_on_host itself must detect.
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ops/cuda/cuda_on_host.h"

namespace dtopp::ops::cuda_on_host {
namespace {

constexpr int kThreads = 64;

void run_block(const std::function<void()>& kernel, size_t shared_bytes = 0) {
  run({"test", 1, 1, kThreads, shared_bytes}, kernel);
}

std::string error_of(const std::function<void()>& kernel) {
  try {
    run_block(kernel);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(CudaOnHost, runs_every_thread_of_every_block_once) {
  std::vector<int> seen(3 * 2 * kThreads);
  run({"test", 3, 2, kThreads, 0},
      [&] { ++seen[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x]; });
  EXPECT_THAT(seen, testing::Each(1));
}

TEST(CudaOnHost, barriers_order_writes_and_reads_of_shared_memory) {
  std::vector<int> sums(kThreads);
  run_block(
      [&] {
        int* shared = reinterpret_cast<int*>(shared_memory());
        shared[threadIdx.x] = static_cast<int>(threadIdx.x);
        __syncthreads();
        for (int i = 0; i < kThreads; ++i) sums[threadIdx.x] += shared[i];
      },
      kThreads * sizeof(int));
  EXPECT_THAT(sums, testing::Each(kThreads * (kThreads - 1) / 2));
}

TEST(CudaOnHost, warps_exchange_among_themselves) {
  std::vector<unsigned> neighbors(kThreads), votes(kThreads);
  run_block([&] {
    neighbors[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFFU, threadIdx.x, 1);
    votes[threadIdx.x] = __ballot_sync(0xFFFFFFFFU, threadIdx.x % 2 == 1);
  });
  for (unsigned thread = 0; thread < kThreads; ++thread) EXPECT_EQ(neighbors[thread], thread ^ 1U);
  EXPECT_THAT(votes, testing::Each(0xAAAAAAAAU));
}

TEST(CudaOnHost, a_barrier_that_some_threads_miss_is_an_error) {
  EXPECT_THAT(error_of([] {
                if (threadIdx.x != 5) __syncthreads();
              }),
              testing::HasSubstr("a barrier is not reached by all threads"));
  EXPECT_THAT(error_of([] {
                if (threadIdx.x % 2 == 0) __shfl_xor_sync(0xFFFFFFFFU, 1, 2);
              }),
              testing::HasSubstr("a barrier is not reached by all threads"));
}

TEST(CudaOnHost, two_barriers_are_not_one) {
  const auto kernel = [] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  };
  EXPECT_THAT(error_of(kernel), testing::HasSubstr("a barrier is not reached by all threads"));
}

TEST(CudaOnHost, reading_a_lane_that_does_not_take_part_is_an_error) {
  EXPECT_THAT(error_of([] {
                if (threadIdx.x % 32 < 16) __shfl_xor_sync(0xFFFFU, 1, 16);
              }),
              testing::HasSubstr("reads from one outside the mask"));
}

TEST(CudaOnHost, a_trap_is_an_error) {
  EXPECT_THAT(error_of([] {
                if (threadIdx.x == 3) __trap();
              }),
              testing::HasSubstr("trap"));
}

TEST(CudaOnHost, without_a_barrier_the_order_of_threads_shows) {
  std::vector<int> first;
  bool differs = false;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    set_seed(seed);
    std::vector<int> order;
    run_block([&] { order.push_back(static_cast<int>(threadIdx.x)); });
    if (seed == 0) first = order;
    differs = differs || order != first;
  }
  EXPECT_TRUE(differs);
}

TEST(CudaOnHost, a_warp_that_gets_ahead_overwrites_what_others_have_yet_to_read) {
  bool differs = false;
  for (int attempt = 0; attempt < 20; ++attempt) {
    std::vector<int> read(kThreads);
    run_block(
        [&] {
          int* shared = reinterpret_cast<int*>(shared_memory());
          if (threadIdx.x == 0) shared[0] = 1;
          __syncthreads();
          __syncwarp();
          read[threadIdx.x] = shared[0];
          __syncwarp();  // a block-wide barrier is missing here
          if (threadIdx.x == 0) shared[0] = 2;
        },
        sizeof(int));
    differs = differs || read != std::vector<int>(kThreads, 1);
  }
  EXPECT_TRUE(differs);
}

TEST(CudaOnHost, refuses_what_a_launch_refuses) {
  EXPECT_THROW(run({"test", 1, 1, 33, 0}, [] {}), std::runtime_error);
  EXPECT_THROW(run({"test", 1, 1, 2048, 0}, [] {}), std::runtime_error);
  EXPECT_THROW(run({"test", 1, 1 << 17, 32, 0}, [] {}), std::runtime_error);
  EXPECT_THROW(run({"test", 1, 1, 32, 1 << 20}, [] {}), std::runtime_error);
}

}  // namespace
}  // namespace dtopp::ops::cuda_on_host

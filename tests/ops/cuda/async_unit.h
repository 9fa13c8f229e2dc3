// State of a block's pending work, shared by copies, barriers and products.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "tests/ops/cuda/cuda_on_host.h"

namespace dtopp::ops::cuda_on_host {

constexpr int kGroupThreads = 128, kWarpThreads = 32;
constexpr uint32_t kChunkBytes = 16;

struct Chunk {
  enum class State { kClean, kUnderWay, kNotFenced } state = State::kClean;
  int readers = 0;  // products that read this chunk
};

struct Copy {
  uint32_t to;
  const void* from;
  uint32_t bytes;
};

struct Barrier {
  uint32_t arrivals, missing;
  uint32_t phase = 0;
};

struct Thread {
  std::vector<Copy> begun;
  std::deque<std::vector<Copy>> groups;
  std::vector<uint32_t> not_fenced;  // indices of chunks
  bool sums_fenced = false;
  size_t products = 0;           // number of products begun
  std::deque<size_t> committed;  // number of products at each commit
};

struct Begun {
  Product product;
  float* sums[kGroupThreads] = {};
  int threads = 0, ended_warps = 0;
};

struct WarpGroup {
  std::vector<Begun> products;
  size_t made = 0;
  std::vector<size_t> ended = std::vector<size_t>(kGroupThreads / kWarpThreads);  // products ended, per warp
};

// Created when a block first uses it.
struct Unit {
  Unit()
      : chunks(shared_bytes() / kChunkBytes),
        threads(blockDim.x),
        groups((blockDim.x + kGroupThreads - 1) / kGroupThreads) {}

  std::vector<Chunk> chunks;
  std::vector<Thread> threads;
  std::vector<WarpGroup> groups;
  std::map<uint32_t, Barrier> barriers;
  int copies_under_way = 0;
};

// The unit of the running block.
Unit& unit();
inline Thread& this_thread() { return unit().threads.at(thread()); }
inline WarpGroup& this_group() { return unit().groups.at(thread() / kGroupThreads); }

// Whether an asynchronous operation runs now. Otherwise it runs when it is waited for.
inline bool at_once() { return draw() % 2 == 0; }

}  // namespace dtopp::ops::cuda_on_host

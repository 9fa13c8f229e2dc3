// What is under way in a block: state that copies, barriers and products share.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "tests/ops/cuda/cuda_on_host.h"

namespace dtopp::cuda_on_host {

constexpr int kGroupThreads = 128, kWarpThreads = 32;
constexpr uint32_t kChunkBytes = 16;

struct Chunk {
  enum class State { kClean, kUnderWay, kNotFenced } state = State::kClean;
  int readers = 0;  // products
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
  std::vector<uint32_t> not_fenced;  // chunks
  bool sums_fenced = false;
  size_t products = 0;           // begun
  std::deque<size_t> committed;  // products at each commit
};

struct Begun {
  Product product;
  float* sums[kGroupThreads] = {};
  int threads = 0, ended_warps = 0;
};

struct WarpGroup {
  std::vector<Begun> products;
  size_t made = 0;
  std::vector<size_t> ended = std::vector<size_t>(kGroupThreads / kWarpThreads);  // of each warp
};

// Made when a block first uses it.
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

// The running block's.
Unit& unit();
inline Thread& this_thread() { return unit().threads.at(thread()); }
inline WarpGroup& this_group() { return unit().groups.at(thread() / kGroupThreads); }

// Whether what a device does in its own time is done now, or when it is waited for.
inline bool at_once() { return draw() % 2 == 0; }

}  // namespace dtopp::cuda_on_host

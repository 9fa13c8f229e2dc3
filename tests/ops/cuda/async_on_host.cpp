#include <memory>

#include "tests/ops/cuda/async_unit.h"

namespace dtopp::ops::cuda_on_host {
namespace {

std::unique_ptr<Unit> of_block;  // NOLINT: tests only

void land(const Copy& copy) {
  unsigned char* to = shared_memory() + copy.to;
  std::memset(to, 0, kChunkBytes);
  std::memcpy(to, copy.from, copy.bytes);
}

Barrier& barrier_at(uint32_t place, const Where& where) {
  const auto found = unit().barriers.find(place);
  if (found == unit().barriers.end()) fail("there is no barrier", where);
  return found->second;
}

}  // namespace

Unit& unit() {
  if (!of_block) of_block = std::make_unique<Unit>();
  return *of_block;
}

void begin_block() { of_block.reset(); }

void end_block() {
  if (!of_block) return;
  if (of_block->copies_under_way != 0) throw std::runtime_error("a block ends while copies are under way");
  for (const WarpGroup& group : of_block->groups) {
    for (const size_t ended : group.ended) {
      if (ended != group.products.size())
        throw std::runtime_error("a block ends while products are under way");
    }
  }
}

uint32_t shared_address(const void* place) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(place) - shared_memory());
}

void copy_async(uint32_t to, const void* from, uint32_t bytes, const Where& where) {
  if (to % kChunkBytes != 0 || reinterpret_cast<uintptr_t>(from) % kChunkBytes != 0)
    fail("a copy from or to an address that is no multiple of 16", where);
  if (bytes > kChunkBytes || to + kChunkBytes > shared_bytes()) fail("a copy past the shared memory", where);
  Chunk& chunk = unit().chunks[to / kChunkBytes];
  if (chunk.readers != 0) fail("a copy goes to what a product may still read", where);
  if (chunk.state == Chunk::State::kUnderWay) fail("two copies go to the same place", where);
  chunk.state = Chunk::State::kUnderWay;
  ++unit().copies_under_way;
  const Copy copy{to, from, bytes};
  if (at_once()) land(copy);
  this_thread().begun.push_back(copy);
}

void prefetch_line(const void* from) { static_cast<void>(*static_cast<const volatile unsigned char*>(from)); }

void commit_copies() {
  Thread& self = this_thread();
  self.groups.push_back(std::move(self.begun));
  self.begun.clear();
}

void wait_for_all_copies_but(int groups) {
  Thread& self = this_thread();
  for (; self.groups.size() > static_cast<size_t>(groups); self.groups.pop_front()) {
    for (const Copy& copy : self.groups.front()) {
      land(copy);
      unit().chunks[copy.to / kChunkBytes].state = Chunk::State::kNotFenced;
      self.not_fenced.push_back(copy.to / kChunkBytes);
      --unit().copies_under_way;
    }
  }
}

void fence_for_wgmma() {
  Thread& self = this_thread();
  for (const uint32_t chunk : self.not_fenced) {
    if (unit().chunks[chunk].state == Chunk::State::kNotFenced)
      unit().chunks[chunk].state = Chunk::State::kClean;
  }
  self.not_fenced.clear();
}

void make_barrier(uint32_t barrier, uint32_t arrivals, const Where& where) {
  if (barrier % 8 != 0 || barrier + 8 > shared_bytes()) fail("a barrier at a wrong place", where);
  unit().barriers[barrier] = {arrivals, arrivals};
}

void arrive(uint32_t place, const Where& where) {
  Barrier& barrier = barrier_at(place, where);
  if (--barrier.missing > 0) return;
  barrier.missing = barrier.arrivals;
  ++barrier.phase;
}

void wait_for_phase(uint32_t place, uint32_t parity, const Where& where) {
  barrier_at(place, where);
  wait_until([place, parity] { return unit().barriers.at(place).phase % 2 != parity; }, where);
}

}  // namespace dtopp::ops::cuda_on_host

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "tests/ops/cuda/cuda_on_host.h"

namespace dtopp::cuda_on_host {
namespace {

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
  bool made = false;
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

std::unique_ptr<Unit> of_block;  // NOLINT: of tests

Unit& unit() {
  if (!of_block) of_block = std::make_unique<Unit>();
  return *of_block;
}

Thread& this_thread() { return unit().threads.at(thread()); }
WarpGroup& this_group() { return unit().groups.at(thread() / kGroupThreads); }

bool at_once() { return draw() % 2 == 0; }

void land(const Copy& copy) {
  unsigned char* to = shared_memory() + copy.to;
  std::memset(to, 0, kChunkBytes);
  std::memcpy(to, copy.from, copy.bytes);
}

// Of the element (row of M or N, depth): where it lies. cuda_wgmma.h has the layout.
uint32_t address(uint64_t operand, bool transposed, uint32_t row, uint32_t depth) {
  const auto field = [operand](int bit) { return static_cast<uint32_t>(operand >> bit & 0x3FFF) << 4; };
  const uint32_t begin = field(0), block_bytes = field(16), group_bytes = field(32);
  const uint32_t plain =
      transposed ? begin + row % 64 * 2 + row / 64 * block_bytes + depth % 8 * 128 + depth / 8 * group_bytes
                 : begin + row % 8 * 128 + row / 8 * group_bytes + depth * 2;
  return plain ^ (plain >> 7 & 7) << 4;
}

template <typename Body>
void for_elements(const Product& product, const Body& body) {
  for (uint32_t depth = 0; depth < 16; ++depth) {
    for (uint32_t row = 0; row < 64; ++row) body(address(product.a, product.transposed_a, row, depth));
    for (uint32_t row = 0; row < 256; ++row) body(address(product.b, product.transposed_b, row, depth));
  }
}

void change_readers(const Product& product, int by) {
  for_elements(product, [&](uint32_t at) { unit().chunks[at / kChunkBytes].readers += by; });
}

float number_at(uint32_t at) {
  uint16_t bits = 0;
  std::memcpy(&bits, shared_memory() + at, sizeof(bits));
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

void make(Begun& begun) {
  const Product& p = begun.product;
  std::vector<float> a(64 * 16), b(256 * 16);
  for (uint32_t k = 0; k < 16; ++k) {
    for (uint32_t m = 0; m < 64; ++m) a[m * 16 + k] = number_at(address(p.a, p.transposed_a, m, k));
    for (uint32_t n = 0; n < 256; ++n) b[n * 16 + k] = number_at(address(p.b, p.transposed_b, n, k));
  }
  for (uint32_t m = 0; m < 64; ++m) {
    for (uint32_t n = 0; n < 256; ++n) {
      float sum = 0;
      for (uint32_t k = 0; k < 16; ++k) sum += a[m * 16 + k] * b[n * 16 + k];
      float& to = begun.sums[m / 16 * 32 + m % 8 * 4 + n % 8 / 2][4 * (n / 8) + m % 16 / 8 * 2 + n % 2];
      to = p.accumulate ? to + sum : sum;
    }
  }
  begun.made = true;
}

void make_up_to(WarpGroup& group, size_t products) {
  for (; group.made < products; ++group.made) make(group.products[group.made]);
}

void check_operands(const Product& product, const Where& where) {
  if ((product.a >> 62) != 1 || (product.b >> 62) != 1)
    fail("an operand without the 128-byte swizzle", where);
  for_elements(product, [&](uint32_t at) {
    if (at >= shared_bytes()) fail("a product reads past the shared memory", where);
    const Chunk::State state = unit().chunks[at / kChunkBytes].state;
    if (state == Chunk::State::kUnderWay) fail("a product reads what is still being copied", where);
    if (state == Chunk::State::kNotFenced) fail("a product reads what was not fenced off for it", where);
  });
}

Barrier& barrier_at(uint32_t place, const Where& where) {
  const auto found = unit().barriers.find(place);
  if (found == unit().barriers.end()) fail("there is no barrier", where);
  return found->second;
}

}  // namespace

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

void wgmma_fence() { this_thread().sums_fenced = true; }

void begin_product(float* sums, const Product& product, const Where& where) {
  Thread& self = this_thread();
  WarpGroup& group = this_group();
  if (!self.sums_fenced) fail("sums were not fenced", where);
  if (self.products == group.products.size()) group.products.push_back({product});
  Begun& begun = group.products[self.products++];
  if (!(begun.product == product)) fail("the threads of a warp group do not agree on a product", where);
  begun.sums[thread() % kGroupThreads] = sums;
  if (++begun.threads < kGroupThreads) return;
  check_operands(product, where);
  change_readers(product, 1);
  if (at_once()) make_up_to(group, self.products);
}

void wgmma_commit() {
  Thread& self = this_thread();
  self.committed.push_back(self.products);
}

void wait_for_products_but(int groups, const Where& where) {
  Thread& self = this_thread();
  WarpGroup& group = this_group();
  if (self.committed.size() <= static_cast<size_t>(groups)) return;
  while (self.committed.size() > static_cast<size_t>(groups) + 1) self.committed.pop_front();
  const size_t products = self.committed.front();
  self.committed.pop_front();
  wait_until(
      [&group, products] {
        for (size_t n = group.made; n < products; ++n) {
          if (group.products[n].threads < kGroupThreads) return false;
        }
        return true;
      },
      where);
  make_up_to(group, products);
  if (groups == 0) self.sums_fenced = false;
  exchange(0xFFFFFFFFU, nullptr, 0, where);
  for (size_t& ended = group.ended[thread() % kGroupThreads / kWarpThreads]; ended < products; ++ended) {
    Begun& begun = group.products[ended];
    if (++begun.ended_warps == kGroupThreads / kWarpThreads) change_readers(begun.product, -1);
  }
}

void read_matrices(uint32_t (&out)[4], uint32_t row, bool transposed, const Where& where) {
  if (row % kChunkBytes != 0 || row + kChunkBytes > shared_bytes())
    fail("a matrix's row lies at a wrong place", where);
  if (unit().chunks[row / kChunkBytes].state == Chunk::State::kUnderWay)
    fail("a matrix is read while it is still being copied", where);
  const unsigned char* rows = exchange(0xFFFFFFFFU, &row, sizeof(row), where);
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t numbers[2];
    for (int i = 0; i < 2; ++i) {
      const int along = lane() % 4 * 2 + i, across = lane() / 4;
      uint32_t from = 0;
      std::memcpy(&from, rows + kSlotBytes * (matrix * 8 + (transposed ? along : across)), sizeof(from));
      std::memcpy(&numbers[i], shared_memory() + from + 2 * (transposed ? across : along), sizeof(uint16_t));
    }
    std::memcpy(&out[matrix], numbers, sizeof(numbers));
  }
}

void mma(float* sums, const uint32_t (&a)[4], uint32_t b_first, uint32_t b_second, const Where& where) {
  const uint32_t own[6] = {a[0], a[1], a[2], a[3], b_first, b_second};
  const unsigned char* lanes = exchange(0xFFFFFFFFU, own, sizeof(own), where);
  // Number i of a lane's word.
  const auto number = [&](int of_lane, int word, int i) {
    uint16_t bits = 0;
    std::memcpy(&bits, lanes + kSlotBytes * of_lane + 4 * word + 2 * i, sizeof(bits));
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  };
  for (int n = 0; n < 4; ++n) {
    const int row = lane() / 4, half = n / 2, column = lane() % 4 * 2 + n % 2;
    for (int k = 0; k < 16; ++k) {
      const int holds = k % 8 / 2, i = k % 2;
      sums[n] += number(row * 4 + holds, half + k / 8 * 2, i) * number(column * 4 + holds, 4 + k / 8, i);
    }
  }
}

}  // namespace dtopp::cuda_on_host

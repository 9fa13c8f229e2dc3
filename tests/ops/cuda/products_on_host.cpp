#include "tests/ops/cuda/async_unit.h"

namespace dtopp::ops::cuda_on_host {
namespace {

// The address of an element (row of M or N, depth). tiles_cuda.h describes the layout.
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

// The bf16 number at an address.
float number_at(const unsigned char* place) {
  uint16_t bits = 0;
  std::memcpy(&bits, place, sizeof(bits));
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

void make(Begun& begun) {
  const Product& p = begun.product;
  std::vector<float> a(64 * 16), b(256 * 16);
  for (uint32_t k = 0; k < 16; ++k) {
    for (uint32_t m = 0; m < 64; ++m)
      a[m * 16 + k] = number_at(shared_memory() + address(p.a, p.transposed_a, m, k));
    for (uint32_t n = 0; n < 256; ++n)
      b[n * 16 + k] = number_at(shared_memory() + address(p.b, p.transposed_b, n, k));
  }
  for (uint32_t m = 0; m < 64; ++m) {
    for (uint32_t n = 0; n < 256; ++n) {
      float sum = 0;
      for (uint32_t k = 0; k < 16; ++k) sum += a[m * 16 + k] * b[n * 16 + k];
      float& to = begun.sums[m / 16 * 32 + m % 8 * 4 + n % 8 / 2][4 * (n / 8) + m % 16 / 8 * 2 + n % 2];
      to = p.accumulate ? to + sum : sum;
    }
  }
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

}  // namespace

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
  // Number i of a word of a lane.
  const auto number = [&](int of_lane, int word, int i) {
    return number_at(lanes + kSlotBytes * of_lane + 4 * word + 2 * i);
  };
  for (int n = 0; n < 4; ++n) {
    const int row = lane() / 4, half = n / 2, column = lane() % 4 * 2 + n % 2;
    for (int k = 0; k < 16; ++k) {
      const int holds = k % 8 / 2, i = k % 2;
      sums[n] += number(row * 4 + holds, half + k / 8 * 2, i) * number(column * 4 + holds, 4 + k / 8, i);
    }
  }
}

}  // namespace dtopp::ops::cuda_on_host

// Counter-based random numbers (Philox 4x32-10, Salmon et al. 2011): the value at (seed, purpose, index) is a
// pure function, so it depends on no order of evaluation, world size, micro-batch size or restart.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace dtopp {

// The block function: 128 random bits of a counter under a key (low word first).
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, uint64_t key);

// One independent stream: all draws for one purpose under one seed.
class RandomStream {
 public:
  // `purpose` names the stream ("sample order", "init model.norm.weight").
  RandomStream(uint64_t seed, std::string_view purpose);

  // 128 random bits at `index`.
  std::array<uint32_t, 4> bits(uint64_t index) const;
  // Uniform in [0, 1), 53 bits, from the first half of bits(index).
  double uniform(uint64_t index) const;
  // Fills `out` with independent standard normal numbers (Box and Muller 1958): those of row `index` of a
  // table whose rows are as long. They reach to ±6.7.
  void normals(uint64_t index, std::span<float> out) const;

 private:
  uint64_t key_;
  uint64_t stream_;
};

// A keyed bijection of [0, size): position -> index, computed without a table (a Feistel network with cycle
// walking). Equal (stream, epoch, size) give an equal permutation. Over epochs every place is equally likely;
// below about 32 elements, pairs of places are not quite.
class Permutation {
 public:
  Permutation(const RandomStream& stream, uint64_t epoch, uint64_t size);
  uint64_t operator()(uint64_t position) const;

 private:
  RandomStream stream_;
  uint64_t epoch_;
  uint64_t size_;
  unsigned half_bits_;
};

}  // namespace dtopp

// Generates counter-based random numbers (Philox 4x32-10, Salmon et al. 2011).
//
// The value at (seed, purpose, index) is a pure function. It does not depend on the order of evaluation, the
// world size, the micro-batch size or restarts.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace dtopp {

// The block function: 128 random bits for a counter and a key (low word first).
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, uint64_t key);

// A random stream for one purpose under one seed. Streams of different purposes are independent.
class RandomStream {
 public:
  // `purpose` names the stream ("sample order", "init model.norm.weight").
  RandomStream(uint64_t seed, std::string_view purpose);

  // 128 random bits at `index`.
  std::array<uint32_t, 4> bits(uint64_t index) const;
  // Uniform in [0, 1), 53 bits, from the first half of bits(index).
  double uniform(uint64_t index) const;
  // Fills `out` with independent standard normal numbers (Box and Muller 1958). They are row `index` of a
  // table whose rows have out.size() numbers. Their absolute value is at most 6.7.
  void normals(uint64_t index, std::span<float> out) const;

 private:
  uint64_t key_, stream_;
};

// A keyed bijection of [0, size) from position to index, computed without a table (a Feistel network with
// cycle walking). Equal (stream, epoch, size) give the same permutation.
//
// Over the epochs, an element is equally likely at every position. Below about 32 elements, the joint
// distribution of two positions is not quite uniform.
//
// Throws:        std::invalid_argument if `size` is 0 or above 2^52; std::out_of_range if a position is not
//                below `size`
class Permutation {
 public:
  Permutation(const RandomStream& stream, uint64_t epoch, uint64_t size);
  uint64_t operator()(uint64_t position) const;

 private:
  RandomStream stream_;
  uint64_t epoch_, size_;
  unsigned half_bits_;
};

}  // namespace dtopp

// Computes the weighted sums and the transposes of resize() on rows of bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace dtopp::data {

inline constexpr int kWeightBits = 22;  // fractional bits of a weight

// Computes out[i] = the sum over t of weights[t] * rows[t * stride + i], for 0 <= i < count, rounded and
// clipped to eight bits. Precondition: the magnitudes of the weights sum to less than 2.
void sum_weighted_rows(const uint8_t* rows, size_t stride, std::span<const int32_t> weights, uint8_t* out,
                       size_t count);

// Computes out[x * out_stride + y] = in[y * in_stride + x] for y < rows, x < columns.
void transpose(const uint8_t* in, size_t in_stride, size_t rows, size_t columns, uint8_t* out,
               size_t out_stride);

}  // namespace dtopp::data

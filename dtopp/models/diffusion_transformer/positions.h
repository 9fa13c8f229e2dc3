// Where a token stands in its image, and when: fixed tables, computed in f64.
#pragma once

#include "dtopp/models/layers/attention.h"

namespace dtopp {

// Of the tokens of `images` images, one image after the other: `text` tokens at row 0, column 0, then
// grid x grid patches row by row. Of the pairs (i, i + K / 2) of a head the first K / 4 turn by the row, the
// others by the column: their j-th by place * 10000^(-j / (K / 4)). f32 [T, K].
RotaryTable axial_rotary_table(int64_t images, int64_t text, int64_t grid, int64_t head_size,
                               const at::Device& device);

// f32 [grid * grid, D]: sines and cosines of the column, then of the row, as DiT's.
at::Tensor sincos_table(int64_t grid, int64_t hidden_size, const at::Device& device);

inline constexpr int64_t kTimestepFeatures = 256;

// f32 [B, 256]: cosines, then sines, of 1000 t * 10000^(-i / 128).
at::Tensor timestep_features(const at::Tensor& t_B);

}  // namespace dtopp

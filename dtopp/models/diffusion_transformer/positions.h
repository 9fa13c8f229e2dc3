// Computes tables of image positions and features of the time t, in f64.
#pragma once

#include "dtopp/models/layers/attention.h"

namespace dtopp::models {

// Rotary table f32 [T, K] for the tokens of `images` images, one image after the other. Each image has `text`
// tokens at row 0 and column 0, then grid x grid patches row by row. In each head, the first K / 4 of the
// pairs (i, i + K / 2) rotate by the row, the others by the column. Pair j of either rotates by position *
// 10000^(-j / (K / 4)).
RotaryTable axial_rotary_table(int64_t images, int64_t text, int64_t grid, int64_t head_size,
                               const at::Device& device);

// f32 [grid * grid, D]: sines and cosines of the column, then of the row, as in DiT.
at::Tensor sincos_table(int64_t grid, int64_t hidden_size, const at::Device& device);

inline constexpr int64_t kTimestepFeatures = 256;

// f32 [B, 256]: cosines, then sines, of 1000 t * 10000^(-i / 128).
at::Tensor timestep_features(const at::Tensor& t_B);

}  // namespace dtopp::models

// What a diffusion transformer learns to predict, from an image x_0 and normal noise e:
//
//   flow:  x_t = (1 - t) x_0 + t e                            e - x_0     t in [0, 1]
//   ddpm:  x_t = sqrt(a_k) x_0 + sqrt(1 - a_k) e              e           t = k / 1000, k in 0 … 999
//
// a_k the product of 1 - b_i over i up to k, b from 1e-4 to 0.02 in equal steps.
#pragma once

#include "dtopp/config/diffusion_config.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp {

inline constexpr int64_t kDdpmSteps = 1000;

struct Noised {
  at::Tensor x_BCHW, target_BCHW;  // f32
};

// x0 and noise f32 [B, C, H, W], t f32 [B], on one device.
Noised add_noise(Objective objective, const at::Tensor& x0_BCHW, const at::Tensor& noise_BCHW,
                 const at::Tensor& t_B);

// a_k for k in 0 … 999, f64.
at::Tensor ddpm_alpha_products(const at::Device& device);

// The t below which the given share of training samples lies; `share` in [0, 1]. With ddpm a step's t.
float timestep_at(double share, const DiffusionConfig& config);

}  // namespace dtopp

// Defines the target that a diffusion transformer predicts, given an image x_0 and normal noise e.
//
//   objective  noised image                            target      time
//   flow       x_t = (1 - t) x_0 + t e                 e - x_0     t in [0, 1]
//   ddpm       x_t = sqrt(a_k) x_0 + sqrt(1 - a_k) e   e           t = k / 1000, k from 0 to 999
//
// a_k is the product of 1 - b_i over i from 0 to k. b rises from 1e-4 to 0.02 in equal steps.
#pragma once

#include "dtopp/config/model_config.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::models {

inline constexpr int64_t kDdpmSteps = 1000;

struct Noised {
  at::Tensor x_BCHW, target_BCHW;  // f32
};

// x0 and noise: f32 [B, C, H, W]; t: f32 [B]; all on one device.
Noised add_noise(config::Objective objective, const at::Tensor& x0_BCHW, const at::Tensor& noise_BCHW,
                 const at::Tensor& t_B);

// a_k for k from 0 to 999, f64.
at::Tensor ddpm_alpha_products(const at::Device& device);

// The t below which the given share of training samples lies; `share` is in [0, 1]. With ddpm, the t of a
// step.
float timestep_at(double share, const config::DiffusionConfig& config);

}  // namespace dtopp::models

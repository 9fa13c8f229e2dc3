// Samples pictures from noise with a diffusion transformer. v is the model's prediction at x_k and t_k:
//
//   flow, t_k = 1 - k / steps:
//     euler  x_{k+1} = x_k + (t_{k+1} - t_k) v
//     heun   x_{k+1} = x_k + (t_{k+1} - t_k) (v + v') / 2; v' is predicted at Euler's x_{k+1}. The last step
//            is an Euler step.
//   ddpm, from step s = (steps - 1 - k) d to s - d, with d = floor(1000 / steps) and t_k = s / 1000:
//     ddim   x_0 = (x_k - sqrt(1 - a_s) v) / sqrt(a_s);  x_{k+1} = sqrt(a_{s-d}) x_0 + sqrt(1 - a_{s-d}) v.
//            a holds the objective's alpha products (objective.h) and is 1 below step 0. x_0 is not clipped.
//
// Guidance: v = f_none + g (f_given - f_none) if t lies in the guidance interval, ends included; otherwise v
// = f_given. f_given and f_none are the predictions with and without the condition.
//
// Source: Ho and Salimans 2022 (guidance)
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "dtopp/models/diffusion_transformer/diffusion_transformer.h"

namespace dtopp {

enum class SamplerMethod { kEuler, kHeun, kDdim };

constexpr auto enum_names(SamplerMethod) {
  return std::array<std::pair<SamplerMethod, std::string_view>, 3>{
      {{SamplerMethod::kEuler, "euler"}, {SamplerMethod::kHeun, "heun"}, {SamplerMethod::kDdim, "ddim"}}};
}

struct SamplerOptions {
  SamplerMethod method = SamplerMethod::kEuler;
  int64_t steps = 50;
  double guidance = 1;  // g; 1: only f_given is computed
  double guidance_begin = 0, guidance_end = 1;
};

// Throws UsageError if the method does not match the objective or there are too many steps for it.
void validate(const SamplerOptions& options, Objective objective);

// Returns the model's prediction (predict() of diffusion_transformer.h), f32 [B, C, H, W].
using Denoiser =
    std::function<at::Tensor(const at::Tensor& x_BCHW, const at::Tensor& t_B, const Condition& condition)>;

// Receives x after each step. Steps are counted from 1.
using StepObserver = std::function<void(int64_t step, const at::Tensor& x_BCHW)>;

// Samples pictures with the condition `given`, in the model's value range.
//
// `none` is the condition without class and text. It is unused if g is 1.
//
// Shapes: noise_BCHW f32 [B, C, H, W], on the model's device -> f32 [B, C, H, W]
at::Tensor sample(const Denoiser& denoise, const at::Tensor& noise_BCHW, const Condition& given,
                  const Condition& none, const SamplerOptions& options, const StepObserver& after_step = {});

}  // namespace dtopp

// Pictures out of noise, by what a diffusion transformer predicts. With v its prediction at x_k, t_k:
//
//   flow, t_k = 1 - k / steps:
//     euler  x_{k+1} = x_k + (t_{k+1} - t_k) v
//     heun   x_{k+1} = x_k + (t_{k+1} - t_k) (v + v') / 2, v' predicted at Euler's x_{k+1}; the last step is
//            Euler's
//   ddpm, from step s = (steps - 1 - k) d of d = floor(1000 / steps) to s - d, t_k = s / 1000:
//     ddim   x_0 = (x_k - sqrt(1 - a_s) v) / sqrt(a_s);  x_{k+1} = sqrt(a_{s-d}) x_0 + sqrt(1 - a_{s-d}) v,
//            a the objective's products (objective.h), 1 below step 0; x_0 is not clipped
//
// Guided (Ho and Salimans 2022): v = f_none + g (f_given - f_none), f the model with and without the
// condition, where t lies in an interval, its ends included; f_given elsewhere.
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
  double guidance = 1;  // g; 1: the model is asked with the condition alone
  double guidance_begin = 0, guidance_end = 1;
};

// UsageError where the method does not solve what the objective learns, or the steps are too many for it.
void validate(const SamplerOptions& options, Objective objective);

// What a model predicts (predict() of diffusion_transformer.h), f32 [B, C, H, W].
using Denoiser =
    std::function<at::Tensor(const at::Tensor& x_BCHW, const at::Tensor& t_B, const Condition& condition)>;

// Called after each step, counted from 1, with what x is then.
using StepObserver = std::function<void(int64_t step, const at::Tensor& x_BCHW)>;

// From noise, f32 [B, C, H, W] on the model's device, to pictures of the condition as the model sees them.
// `none` is the condition of no class and no text; not looked at where g is 1.
at::Tensor sample(const Denoiser& denoise, const at::Tensor& noise_BCHW, const Condition& given,
                  const Condition& none, const SamplerOptions& options, const StepObserver& after_step = {});

}  // namespace dtopp

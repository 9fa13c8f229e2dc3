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
#include <string_view>
#include <utility>

#include "dtopp/models/diffusion_transformer.h"

namespace dtopp::inference {

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
void validate(const SamplerOptions& options, config::Objective objective);

// The model that a sampler calls.
class Denoiser {
 public:
  virtual ~Denoiser() = default;
  // Returns the prediction v, f32 [B, C, H, W].
  virtual at::Tensor predict(const at::Tensor& x_BCHW, const at::Tensor& t_B,
                             const models::Condition& condition) = 0;
};

// A batch of pictures between noise and the last step.
class Sampler {
 public:
  // Samples with the condition `given`. `none` is the condition without class and text; it is unused if g is
  // 1. noise_BCHW is f32 [B, C, H, W], on the model's device. `denoiser` must outlive the sampler.
  Sampler(Denoiser& denoiser, at::Tensor noise_BCHW, models::Condition given, const models::Condition& none,
          const SamplerOptions& options);

  bool is_done() const { return steps_ == options_.steps; }
  int64_t steps() const { return steps_; }  // steps done
  void step();
  const at::Tensor& x_BCHW() const { return x_BCHW_; }  // f32, in the model's value range

 private:
  at::Tensor predict(const at::Tensor& x_BCHW, double t) const;  // with guidance
  at::Tensor flow_step() const;
  at::Tensor ddim_step() const;

  Denoiser& denoiser_;
  models::Condition given_, both_;
  SamplerOptions options_;
  at::Tensor alpha_, x_BCHW_;
  int64_t steps_ = 0;
};

}  // namespace dtopp::inference

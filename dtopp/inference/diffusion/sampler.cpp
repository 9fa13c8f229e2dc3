#include "dtopp/inference/diffusion/sampler.h"

#include <cmath>
#include <string>

#include "dtopp/base/errors.h"
#include "dtopp/models/diffusion_transformer/objective.h"

namespace dtopp {
namespace {

at::Tensor rows(const at::Tensor& first, const at::Tensor& second) {
  return first.defined() ? at::cat({first, second}) : first;
}

// Computes the guided prediction v at x and t.
class GuidedDenoiser {
 public:
  GuidedDenoiser(const Denoiser& denoise, const Condition& given, const Condition& none,
                 const SamplerOptions& options)
      : denoise_(denoise), given_(given), options_(options) {
    if (options.guidance != 1)
      both_ = {rows(given.class_B, none.class_B), rows(given.text_BLS, none.text_BLS)};
  }

  at::Tensor operator()(const at::Tensor& x_BCHW, double t) const {
    const at::Tensor t_B = at::full({x_BCHW.size(0)}, t, x_BCHW.options());
    const bool inside = options_.guidance_begin <= t && t <= options_.guidance_end;
    if (options_.guidance == 1 || !inside) return denoise_(x_BCHW, t_B, given_);
    const auto f = denoise_(at::cat({x_BCHW, x_BCHW}), at::cat({t_B, t_B}), both_).chunk(2);
    return f[1] + options_.guidance * (f[0] - f[1]);
  }

 private:
  const Denoiser& denoise_;
  const Condition& given_;
  const SamplerOptions& options_;
  Condition both_;
};

at::Tensor flow_step(const GuidedDenoiser& predict, const at::Tensor& x_BCHW, int64_t k,
                     const SamplerOptions& options) {
  const auto time = [&](int64_t step) {
    return static_cast<double>(options.steps - step) / static_cast<double>(options.steps);
  };
  const double t = time(k), next = time(k + 1);
  const at::Tensor v = predict(x_BCHW, t);
  const at::Tensor euler = x_BCHW + (next - t) * v;
  if (options.method == SamplerMethod::kEuler || k + 1 == options.steps) return euler;
  return x_BCHW + (next - t) / 2 * (v + predict(euler, next));
}

at::Tensor ddim_step(const GuidedDenoiser& predict, const at::Tensor& x_BCHW, int64_t k,
                     const SamplerOptions& options, const at::Tensor& alpha) {
  const int64_t stride = kDdpmSteps / options.steps;
  const int64_t step = (options.steps - 1 - k) * stride, next = step - stride;
  const double a = alpha[step].item<double>();
  const double a_next = next < 0 ? 1.0 : alpha[next].item<double>();
  const at::Tensor noise = predict(x_BCHW, static_cast<double>(step) / kDdpmSteps);
  const at::Tensor x0 = (x_BCHW - std::sqrt(1 - a) * noise) / std::sqrt(a);
  return std::sqrt(a_next) * x0 + std::sqrt(1 - a_next) * noise;
}

}  // namespace

void validate(const SamplerOptions& options, Objective objective) {
  const bool ddim = options.method == SamplerMethod::kDdim;
  if (ddim && objective == Objective::kFlow)
    throw UsageError(
        "--sampler: ddim needs a model trained with diffusion.objective ddpm; use euler or heun");
  if (!ddim && objective == Objective::kDdpm)
    throw UsageError(
        "--sampler: euler and heun need a model trained with diffusion.objective flow; use ddim");
  if (ddim && options.steps > kDdpmSteps)
    throw UsageError("--steps " + std::to_string(options.steps) + ": ddim takes at most " +
                     std::to_string(kDdpmSteps));
}

at::Tensor sample(const Denoiser& denoise, const at::Tensor& noise_BCHW, const Condition& given,
                  const Condition& none, const SamplerOptions& options, const StepObserver& after_step) {
  const at::NoGradGuard no_grad;
  const GuidedDenoiser predict(denoise, given, none, options);
  const bool ddim = options.method == SamplerMethod::kDdim;
  const at::Tensor alpha = ddim ? ddpm_alpha_products(at::kCPU) : at::Tensor();
  at::Tensor x_BCHW = noise_BCHW;
  for (int64_t k = 0; k < options.steps; ++k) {
    x_BCHW = ddim ? ddim_step(predict, x_BCHW, k, options, alpha) : flow_step(predict, x_BCHW, k, options);
    if (after_step) after_step(k + 1, x_BCHW);
  }
  return x_BCHW;
}

}  // namespace dtopp

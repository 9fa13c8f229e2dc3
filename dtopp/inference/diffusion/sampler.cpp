#include "dtopp/inference/diffusion/sampler.h"

#include <cmath>
#include <string>

#include "dtopp/base/errors.h"
#include "dtopp/models/diffusion_transformer.h"

namespace dtopp::inference {
namespace {

at::Tensor rows(const at::Tensor& first, const at::Tensor& second) {
  return first.defined() ? at::cat({first, second}) : first;
}

}  // namespace

void validate(const SamplerOptions& options, config::Objective objective) {
  const bool ddim = options.method == SamplerMethod::kDdim;
  if (ddim && objective == config::Objective::kFlow)
    throw UsageError(
        "--sampler: ddim needs a model trained with diffusion.objective ddpm; use euler or heun");
  if (!ddim && objective == config::Objective::kDdpm)
    throw UsageError(
        "--sampler: euler and heun need a model trained with diffusion.objective flow; use ddim");
  if (ddim && options.steps > models::kDdpmSteps)
    throw UsageError("--steps " + std::to_string(options.steps) + ": ddim takes at most " +
                     std::to_string(models::kDdpmSteps));
}

Sampler::Sampler(Denoiser& denoiser, at::Tensor noise_BCHW, models::Condition given,
                 const models::Condition& none, const SamplerOptions& options)
    : denoiser_(denoiser), given_(std::move(given)), options_(options), x_BCHW_(std::move(noise_BCHW)) {
  if (options.guidance != 1)
    both_ = {rows(given_.class_B, none.class_B), rows(given_.text_BLS, none.text_BLS)};
  if (options.method == SamplerMethod::kDdim) alpha_ = models::ddpm_alpha_products(at::kCPU);
}

void Sampler::step() {
  const at::NoGradGuard no_grad;
  x_BCHW_ = options_.method == SamplerMethod::kDdim ? ddim_step() : flow_step();
  ++steps_;
}

at::Tensor Sampler::predict(const at::Tensor& x_BCHW, double t) const {
  const at::Tensor t_B = at::full({x_BCHW.size(0)}, t, x_BCHW.options());
  const bool inside = options_.guidance_begin <= t && t <= options_.guidance_end;
  if (options_.guidance == 1 || !inside) return denoiser_.predict(x_BCHW, t_B, given_);
  const auto f = denoiser_.predict(at::cat({x_BCHW, x_BCHW}), at::cat({t_B, t_B}), both_).chunk(2);
  return f[1] + options_.guidance * (f[0] - f[1]);
}

at::Tensor Sampler::flow_step() const {
  const auto time = [&](int64_t step) {
    return static_cast<double>(options_.steps - step) / static_cast<double>(options_.steps);
  };
  const double t = time(steps_), next = time(steps_ + 1);
  const at::Tensor v = predict(x_BCHW_, t);
  const at::Tensor euler = x_BCHW_ + (next - t) * v;
  if (options_.method == SamplerMethod::kEuler || steps_ + 1 == options_.steps) return euler;
  return x_BCHW_ + (next - t) / 2 * (v + predict(euler, next));
}

at::Tensor Sampler::ddim_step() const {
  const int64_t stride = models::kDdpmSteps / options_.steps;
  const int64_t step = (options_.steps - 1 - steps_) * stride, next = step - stride;
  const double a = alpha_[step].item<double>();
  const double a_next = next < 0 ? 1.0 : alpha_[next].item<double>();
  const at::Tensor noise = predict(x_BCHW_, static_cast<double>(step) / models::kDdpmSteps);
  const at::Tensor x0 = (x_BCHW_ - std::sqrt(1 - a) * noise) / std::sqrt(a);
  return std::sqrt(a_next) * x0 + std::sqrt(1 - a_next) * noise;
}

}  // namespace dtopp::inference

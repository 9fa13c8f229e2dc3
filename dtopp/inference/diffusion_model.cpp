#include "dtopp/inference/diffusion_model.h"

#include <cmath>
#include <span>
#include <string>

#include "dtopp/base/errors.h"
#include "dtopp/base/float_type.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/inference/expert_budget.h"
#include "dtopp/inference/inference_model.h"
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

DiffusionModel load_diffusion_model(const checkpoint::Checkpoint& checkpoint, ParameterKind kind,
                                    const at::Device& device) {
  DiffusionModel loaded;
  loaded.config = checkpoint.config();
  loaded.device = device;
  const config::ModelConfig& model = loaded.config.model;
  const config::RoutingConfig& routing = loaded.config.routing;
  loaded.parameter =
      load_parameters(checkpoint, kind, models::diffusion_transformer_parameters(model, routing), device);
  loaded.model = models::bind_diffusion_transformer(model, routing, loaded.parameter);
  loaded.routing = load_routing(checkpoint, loaded.config, device);
  return loaded;
}

data::ImageLayout load_image_layout(const checkpoint::Checkpoint& checkpoint) {
  const std::string file = (checkpoint.path() / checkpoint::kImagesFile).string();
  if (checkpoint.images_json().empty())
    throw CheckpointError(file + ": is missing, so the checkpoint's image layout is unknown");
  try {
    return data::parse_image_layout(checkpoint.images_json(), file);
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

at::Tensor ModelDenoiser::predict(const at::Tensor& x_BCHW, const at::Tensor& t_B,
                                  const models::Condition& condition) {
  const models::Prediction prediction = models::predict(model_.model, x_BCHW, t_B, condition, routing_);
  if (activations_ != nullptr) activations_->add(prediction.routing);
  return prediction.output_BCHW;
}

std::vector<double> targets_of(const config::RunConfig& config, ParameterKind kind, double wanted) {
  if (wanted != 0) {
    require_target(config, wanted);
    return {wanted};
  }
  const bool moved = kind == ParameterKind::kEma && !config.model.is_dense() &&
                     config::has_controller(config.routing.method);
  return moved ? config.routing.experts : std::vector<double>();
}

at::Tensor read_text_embeddings(const std::filesystem::path& path, const config::ModelConfig& model) {
  const SafetensorsFile file(path);
  const TensorView* text = file.find("text");
  if (text == nullptr) throw DataError(path.string() + ": holds no tensor \"text\"");
  const auto type = float_type_of(text->dtype);
  if (!type || text->shape.size() != 3 || text->shape[0] == 0 || text->shape[1] == 0)
    throw DataError(path.string() + ": \"text\" must be F32, F16 or BF16 [texts, tokens, size]");
  if (text->shape[2] != model.text_size || text->shape[1] > model.text_length)
    throw UsageError(path.string() + ": texts of " + std::to_string(text->shape[1]) + " embeddings of size " +
                     std::to_string(text->shape[2]) + ", but the model takes up to " +
                     std::to_string(model.text_length) + " of size " + std::to_string(model.text_size));
  if (!all_finite(*type, text->bytes))
    throw DataError(path.string() + ": \"text\" holds numbers that are not finite");
  const at::Tensor values = at::empty(text->shape, at::kFloat);
  widen(*type, text->bytes, {values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
  return at::constant_pad_nd(values, {0, 0, 0, model.text_length - values.size(1)});
}

}  // namespace dtopp::inference

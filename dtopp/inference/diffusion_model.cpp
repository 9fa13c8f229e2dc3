#include "dtopp/inference/diffusion_model.h"

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/safetensors.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/inference/expert_budget.h"
#include "dtopp/models/solve_thresholds.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::inference {
namespace {

Tensor rows(const Tensor& first, const Tensor& second) {
  return first.defined() ? at::cat({first, second}) : first;
}

constexpr int64_t kSolvePictures = 8;

// Returns the noise of pictures first, first + 1, …, f32 [count, C, H, W] on the host.
Tensor draw_noise(const RandomStream& stream, const config::ModelConfig& model, int64_t first,
                  int64_t count) {
  Tensor noise = at::empty({count, model.channels, model.image_size, model.image_size}, at::kFloat);
  const auto size = static_cast<size_t>(noise.stride(0));
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      stream.normals(static_cast<uint64_t>(first + i),
                     std::span(noise.mutable_data_ptr<float>() + i * noise.stride(0), size));
  });
  return noise;
}

models::Condition condition_of(const PictureRequest& request, int64_t first, int64_t count,
                               const at::Device& device) {
  const Tensor turn_B = at::arange(first, first + count, at::kLong);
  models::Condition condition;
  if (!request.classes.empty()) {
    const Tensor classes = at::tensor(request.classes, at::kLong);
    condition.class_B = ops::to_device(classes.index_select(0, turn_B.remainder(classes.size(0))), device);
  }
  if (request.text_NLS.defined())
    condition.text_BLS =
        ops::to_device(request.text_NLS.index_select(0, turn_B.remainder(request.text_NLS.size(0))), device);
  return condition;
}

models::Condition without_condition(const models::Condition& given, const config::ModelConfig& model) {
  models::Condition none;
  if (given.class_B.defined()) none.class_B = at::full_like(given.class_B, model.num_classes);
  if (given.text_BLS.defined()) none.text_BLS = at::zeros_like(given.text_BLS);
  return none;
}

// The inputs of the model's forward passes during sampling.
struct Question {
  Tensor x_BCHW, t_B;
  models::Condition condition;

  // Returns images first, first + 1, …: `count` of them, or fewer at the end.
  Question from(int64_t first, int64_t count) const {
    const auto part = [&](const Tensor& of) { return of.defined() ? of.slice(0, first, first + count) : of; };
    return {part(x_BCHW), part(t_B), {part(condition.class_B), part(condition.text_BLS)}};
  }
};

// Collects every `stride`-th image of all forward passes of a model.
class Questions final : public Denoiser {
 public:
  Questions(Denoiser& denoiser, int64_t stride) : denoiser_(denoiser), stride_(stride) {}

  Tensor predict(const Tensor& x_BCHW, const Tensor& t_B, const models::Condition& condition) override {
    add(x_BCHW, t_B, condition);
    return denoiser_.predict(x_BCHW, t_B, condition);
  }
  Question all() const { return {at::cat(x_), at::cat(t_), {joined(class_), joined(text_)}}; }

 private:
  void add(const Tensor& x_BCHW, const Tensor& t_B, const models::Condition& condition) {
    const int64_t first = (stride_ - seen_ % stride_) % stride_;
    seen_ += t_B.size(0);
    if (first >= t_B.size(0)) return;
    const auto pick = [&](const Tensor& of, std::vector<Tensor>& to) {
      if (of.defined()) to.push_back(of.slice(0, first, c10::nullopt, stride_));
    };
    pick(x_BCHW, x_);
    pick(t_B, t_);
    pick(condition.class_B, class_);
    pick(condition.text_BLS, text_);
  }
  static Tensor joined(const std::vector<Tensor>& parts) { return parts.empty() ? Tensor() : at::cat(parts); }

  Denoiser& denoiser_;
  int64_t stride_, seen_ = 0;
  std::vector<Tensor> x_, t_, class_, text_;
};

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
    throw UsageError("--steps ", options.steps, ": ddim takes at most ", models::kDdpmSteps);
}

Sampler::Sampler(Denoiser& denoiser, Tensor noise_BCHW, models::Condition given,
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

Tensor Sampler::predict(const Tensor& x_BCHW, double t) const {
  const Tensor t_B = at::full({x_BCHW.size(0)}, t, x_BCHW.options());
  const bool inside = options_.guidance_begin <= t && t <= options_.guidance_end;
  if (options_.guidance == 1 || !inside) return denoiser_.predict(x_BCHW, t_B, given_);
  const auto f = denoiser_.predict(at::cat({x_BCHW, x_BCHW}), at::cat({t_B, t_B}), both_).chunk(2);
  return f[1] + options_.guidance * (f[0] - f[1]);
}

Tensor Sampler::flow_step() const {
  const auto time = [&](int64_t step) {
    return static_cast<double>(options_.steps - step) / static_cast<double>(options_.steps);
  };
  const double t = time(steps_), next = time(steps_ + 1);
  const Tensor v = predict(x_BCHW_, t);
  const Tensor euler = x_BCHW_ + (next - t) * v;
  if (options_.method == SamplerMethod::kEuler || steps_ + 1 == options_.steps) return euler;
  return x_BCHW_ + (next - t) / 2 * (v + predict(euler, next));
}

Tensor Sampler::ddim_step() const {
  const int64_t stride = models::kDdpmSteps / options_.steps;
  const int64_t step = (options_.steps - 1 - steps_) * stride, next = step - stride;
  const double a = alpha_[step].item<double>();
  const double a_next = next < 0 ? 1.0 : alpha_[next].item<double>();
  const Tensor noise = predict(x_BCHW_, static_cast<double>(step) / models::kDdpmSteps);
  const Tensor x0 = (x_BCHW_ - std::sqrt(1 - a) * noise) / std::sqrt(a);
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
    throw CheckpointError(file, ": is missing, so the checkpoint's image layout is unknown");
  try {
    return data::parse_image_layout(checkpoint.images_json(), file);
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

Tensor ModelDenoiser::predict(const Tensor& x_BCHW, const Tensor& t_B, const models::Condition& condition) {
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

Tensor read_text_embeddings(const fs::path& path, const config::ModelConfig& model) {
  const SafetensorsFile file(path);
  const TensorView* text = file.find("text");
  if (text == nullptr) throw DataError(path, ": holds no tensor \"text\"");
  const auto type = enum_named<FloatType>(text->dtype);
  if (!type || text->shape.size() != 3 || text->shape[0] == 0 || text->shape[1] == 0)
    throw DataError(path, ": \"text\" must be F32, F16 or BF16 [texts, tokens, size]");
  if (text->shape[2] != model.text_size || text->shape[1] > model.text_length)
    throw UsageError(path, ": texts of ", text->shape[1], " embeddings of size ", text->shape[2],
                     ", but the model takes up to ", model.text_length, " of size ", model.text_size);
  if (!all_finite(*type, text->bytes)) throw DataError(path, ": \"text\" holds numbers that are not finite");
  const Tensor values = at::empty(text->shape, at::kFloat);
  widen(*type, text->bytes, {values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
  return at::constant_pad_nd(values, {0, 0, 0, model.text_length - values.size(1)});
}

PictureSampler::PictureSampler(Denoiser& denoiser, const config::ModelConfig& model, const at::Device& device,
                               const PictureRequest& request, Watch& watch, const char* stream)
    : denoiser_(denoiser),
      model_(model),
      device_(device),
      request_(request),
      watch_(watch),
      stream_(request.seed, stream) {}

std::optional<PictureBatch> PictureSampler::next() {
  const at::NoGradGuard no_grad;
  const int64_t first = first_, count = std::min(request_.batch_size, request_.count - first);
  if (count <= 0) return std::nullopt;
  const models::Condition given = condition_of(request_, first, count, device_);
  Sampler sampler(denoiser_, ops::to_device(draw_noise(stream_, model_, first, count), device_), given,
                  without_condition(given, model_), request_.sampler);
  while (!sampler.is_done()) {
    sampler.step();
    watch_.update(static_cast<uint64_t>(first * request_.sampler.steps + count * sampler.steps()));
    if (watch_.stop_requested()) throw Stopped("stopped before all pictures were generated; none is kept");
  }
  if (!sampler.x_BCHW().isfinite().all().item<bool>())
    throw NumericalError("pictures ", first, " to ", first + count - 1,
                         ": not finite; use a lower --guidance, more --steps or an earlier checkpoint");
  first_ += count;
  return PictureBatch{first, sampler.x_BCHW().cpu().contiguous()};
}

moe::Routing solve_for_sampling(const DiffusionModel& model, const PictureRequest& request,
                                const std::vector<double>& targets, Watch& watch) {
  const at::NoGradGuard no_grad;
  const config::ModelConfig& config = model.config.model;
  PictureRequest few = request;
  few.count = few.batch_size = kSolvePictures;
  const int64_t images = kSolvePictures * request.sampler.steps * 2;  // approximate number of model inputs
  ModelDenoiser denoiser(model, model.routing);
  // The stride is odd, so that batches whose size is a power of two contribute each of their positions.
  Questions questions(denoiser,
                      std::max<int64_t>(1, images * config.tokens_per_sample() / models::kSolveTokens) | 1);
  PictureSampler sampler(questions, config, model.device, few, watch, "thresholds of a sample");
  while (sampler.next()) {
  }
  const Question all = questions.all();
  return models::solve_thresholds(
      model.config, targets, model.device,
      [&](const moe::Routing& inputs) {
        moe::ActivationStatistics counts(config.num_layers);
        ModelDenoiser counting(model, inputs, &counts);
        for (int64_t first = 0; first < all.t_B.size(0); first += request.batch_size) {
          const Question some = all.from(first, request.batch_size);
          counting.predict(some.x_BCHW, some.t_B, some.condition);
        }
        return counts.summary().mean;
      },
      model.routing);
}

Tensor to_latents(const Tensor& x0_BCHW, const data::ImageLayout& layout) {
  const auto of_channels = [](const std::vector<double>& values) {
    return at::tensor(values, at::kDouble).view({1, -1, 1, 1});
  };
  return (x0_BCHW.to(at::kDouble) / of_channels(layout.scale) + of_channels(layout.shift)).to(at::kFloat);
}

Tensor to_levels(const Tensor& x0_BCHW) {
  return ((x0_BCHW + 1) * 127.5).round().clamp(0, 255).to(at::kByte).permute({0, 2, 3, 1}).contiguous();
}

}  // namespace dtopp::inference

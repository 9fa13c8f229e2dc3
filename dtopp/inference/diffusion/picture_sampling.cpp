#include "dtopp/inference/diffusion/picture_sampling.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "dtopp/base/errors.h"
#include "dtopp/base/random.h"
#include "dtopp/models/solve_thresholds.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp {
namespace {

constexpr int64_t kSolvePictures = 8;

// Returns the noise of pictures first, first + 1, …, f32 [count, C, H, W] on the host.
at::Tensor draw_noise(const RandomStream& stream, const ModelConfig& model, int64_t first, int64_t count) {
  at::Tensor noise = at::empty({count, model.channels, model.image_size, model.image_size}, at::kFloat);
  const auto size = static_cast<size_t>(noise.stride(0));
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      stream.normals(static_cast<uint64_t>(first + i),
                     std::span(noise.mutable_data_ptr<float>() + i * noise.stride(0), size));
  });
  return noise;
}

Condition condition_of(const PictureRequest& request, int64_t first, int64_t count,
                       const at::Device& device) {
  const at::Tensor turn_B = at::arange(first, first + count, at::kLong);
  Condition condition;
  if (!request.classes.empty()) {
    const at::Tensor classes = at::tensor(request.classes, at::kLong);
    condition.class_B = to_device(classes.index_select(0, turn_B.remainder(classes.size(0))), device);
  }
  if (request.text_NLS.defined())
    condition.text_BLS =
        to_device(request.text_NLS.index_select(0, turn_B.remainder(request.text_NLS.size(0))), device);
  return condition;
}

Condition without_condition(const Condition& given, const ModelConfig& model) {
  Condition none;
  if (given.class_B.defined()) none.class_B = at::full_like(given.class_B, model.num_classes);
  if (given.text_BLS.defined()) none.text_BLS = at::zeros_like(given.text_BLS);
  return none;
}

// The inputs of the model's forward passes during sampling.
struct Question {
  at::Tensor x_BCHW, t_B;
  Condition condition;

  // Returns images first, first + 1, …: `count` of them, or fewer at the end.
  Question from(int64_t first, int64_t count) const {
    const auto part = [&](const at::Tensor& of) {
      return of.defined() ? of.slice(0, first, first + count) : of;
    };
    return {part(x_BCHW), part(t_B), {part(condition.class_B), part(condition.text_BLS)}};
  }
};

// Collects every `stride`-th image of all forward passes.
class Questions {
 public:
  explicit Questions(int64_t stride) : stride_(stride) {}

  void add(const at::Tensor& x_BCHW, const at::Tensor& t_B, const Condition& condition) {
    const int64_t first = (stride_ - seen_ % stride_) % stride_;
    seen_ += t_B.size(0);
    if (first >= t_B.size(0)) return;
    const auto pick = [&](const at::Tensor& of, std::vector<at::Tensor>& to) {
      if (of.defined()) to.push_back(of.slice(0, first, c10::nullopt, stride_));
    };
    pick(x_BCHW, x_);
    pick(t_B, t_);
    pick(condition.class_B, class_);
    pick(condition.text_BLS, text_);
  }
  Question all() const { return {at::cat(x_), at::cat(t_), {joined(class_), joined(text_)}}; }

 private:
  static at::Tensor joined(const std::vector<at::Tensor>& parts) {
    return parts.empty() ? at::Tensor() : at::cat(parts);
  }

  int64_t stride_, seen_ = 0;
  std::vector<at::Tensor> x_, t_, class_, text_;
};

void sample_from(const RandomStream& stream, const Denoiser& denoise, const ModelConfig& model,
                 const at::Device& device, const PictureRequest& request, const BatchHooks& hooks,
                 const TakePictures& take) {
  const at::NoGradGuard no_grad;
  for (int64_t first = 0; first < request.count; first += request.batch_size) {
    const int64_t count = std::min(request.batch_size, request.count - first);
    const Condition given = condition_of(request, first, count, device);
    const at::Tensor noise = to_device(draw_noise(stream, model, first, count), device);
    const auto after_step = [&](int64_t step, const at::Tensor& /*x_BCHW*/) {
      hooks.progress(static_cast<uint64_t>(first * request.sampler.steps + count * step));
      if (hooks.stop()) throw Stopped("stopped before all pictures were generated; none is kept");
    };
    const at::Tensor x0_BCHW =
        sample(denoise, noise, given, without_condition(given, model), request.sampler, after_step);
    if (!x0_BCHW.isfinite().all().item<bool>())
      throw NumericalError("pictures " + std::to_string(first) + " to " + std::to_string(first + count - 1) +
                           ": not finite; use a lower --guidance, more --steps or an earlier checkpoint");
    take(first, x0_BCHW.cpu().contiguous());
  }
}

}  // namespace

void sample_pictures(const Denoiser& denoise, const ModelConfig& model, const at::Device& device,
                     const PictureRequest& request, const BatchHooks& hooks, const TakePictures& take) {
  sample_from(RandomStream(request.seed, "sample"), denoise, model, device, request, hooks, take);
}

RoutingInputs solve_for_sampling(const DiffusionModel& model, const PictureRequest& request,
                                 const std::vector<double>& targets, const std::function<bool()>& stop) {
  const at::NoGradGuard no_grad;
  const ModelConfig& config = model.config.model;
  PictureRequest few = request;
  few.count = few.batch_size = kSolvePictures;
  const int64_t images = kSolvePictures * request.sampler.steps * 2;  // approximate number of model inputs
  // The stride is odd, so that batches whose size is a power of two contribute each of their positions.
  Questions questions(std::max<int64_t>(1, images * config.tokens_per_sample() / kSolveTokens) | 1);
  const Denoiser denoise = denoiser_of(model, model.routing);
  const auto watched = [&](const at::Tensor& x_BCHW, const at::Tensor& t_B, const Condition& condition) {
    questions.add(x_BCHW, t_B, condition);
    return denoise(x_BCHW, t_B, condition);
  };
  const BatchHooks hooks{[](uint64_t /*done*/) {}, stop};
  sample_from(RandomStream(request.seed, "thresholds of a sample"), watched, config, model.device, few, hooks,
              [](int64_t /*first*/, const at::Tensor& /*x0_BCHW*/) {});
  const Question all = questions.all();
  return solve_thresholds(
      model.config.routing, config.num_layers, targets, model.device,
      [&](const RoutingInputs& inputs) {
        ActivationStatistics counts(config.num_layers);
        const Denoiser counting = denoiser_of(model, inputs, &counts);
        for (int64_t first = 0; first < all.t_B.size(0); first += request.batch_size) {
          const Question some = all.from(first, request.batch_size);
          counting(some.x_BCHW, some.t_B, some.condition);
        }
        return counts.summary().mean;
      },
      model.routing);
}

at::Tensor to_latents(const at::Tensor& x0_BCHW, const ImageLayout& layout) {
  const auto of_channels = [](const std::vector<double>& values) {
    return at::tensor(values, at::kDouble).view({1, -1, 1, 1});
  };
  return (x0_BCHW.to(at::kDouble) / of_channels(layout.scale) + of_channels(layout.shift)).to(at::kFloat);
}

at::Tensor to_levels(const at::Tensor& x0_BCHW) {
  return ((x0_BCHW + 1) * 127.5).round().clamp(0, 255).to(at::kByte).permute({0, 2, 3, 1}).contiguous();
}

}  // namespace dtopp

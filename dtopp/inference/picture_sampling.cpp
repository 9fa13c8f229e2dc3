#include "dtopp/inference/picture_sampling.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "dtopp/base/errors.h"
#include "dtopp/base/random.h"
#include "dtopp/models/solve_thresholds.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::inference {
namespace {

constexpr int64_t kSolvePictures = 8;

// Returns the noise of pictures first, first + 1, …, f32 [count, C, H, W] on the host.
at::Tensor draw_noise(const RandomStream& stream, const config::ModelConfig& model, int64_t first,
                      int64_t count) {
  at::Tensor noise = at::empty({count, model.channels, model.image_size, model.image_size}, at::kFloat);
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
  const at::Tensor turn_B = at::arange(first, first + count, at::kLong);
  models::Condition condition;
  if (!request.classes.empty()) {
    const at::Tensor classes = at::tensor(request.classes, at::kLong);
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
  at::Tensor x_BCHW, t_B;
  models::Condition condition;

  // Returns images first, first + 1, …: `count` of them, or fewer at the end.
  Question from(int64_t first, int64_t count) const {
    const auto part = [&](const at::Tensor& of) {
      return of.defined() ? of.slice(0, first, first + count) : of;
    };
    return {part(x_BCHW), part(t_B), {part(condition.class_B), part(condition.text_BLS)}};
  }
};

// Collects every `stride`-th image of all forward passes of a model.
class Questions final : public Denoiser {
 public:
  Questions(Denoiser& denoiser, int64_t stride) : denoiser_(denoiser), stride_(stride) {}

  at::Tensor predict(const at::Tensor& x_BCHW, const at::Tensor& t_B,
                     const models::Condition& condition) override {
    add(x_BCHW, t_B, condition);
    return denoiser_.predict(x_BCHW, t_B, condition);
  }
  Question all() const { return {at::cat(x_), at::cat(t_), {joined(class_), joined(text_)}}; }

 private:
  void add(const at::Tensor& x_BCHW, const at::Tensor& t_B, const models::Condition& condition) {
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
  static at::Tensor joined(const std::vector<at::Tensor>& parts) {
    return parts.empty() ? at::Tensor() : at::cat(parts);
  }

  Denoiser& denoiser_;
  int64_t stride_, seen_ = 0;
  std::vector<at::Tensor> x_, t_, class_, text_;
};

}  // namespace

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
    throw NumericalError("pictures " + std::to_string(first) + " to " + std::to_string(first + count - 1) +
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

at::Tensor to_latents(const at::Tensor& x0_BCHW, const data::ImageLayout& layout) {
  const auto of_channels = [](const std::vector<double>& values) {
    return at::tensor(values, at::kDouble).view({1, -1, 1, 1});
  };
  return (x0_BCHW.to(at::kDouble) / of_channels(layout.scale) + of_channels(layout.shift)).to(at::kFloat);
}

at::Tensor to_levels(const at::Tensor& x0_BCHW) {
  return ((x0_BCHW + 1) * 127.5).round().clamp(0, 255).to(at::kByte).permute({0, 2, 3, 1}).contiguous();
}

}  // namespace dtopp::inference

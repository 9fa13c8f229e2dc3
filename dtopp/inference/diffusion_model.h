// Loads a diffusion transformer for sampling and evaluation: fp32 parameters and the router.
#pragma once

#include "dtopp/base/random.h"
#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/config/model_config.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/inference/inference_model.h"
#include "dtopp/inference/shared_batches.h"
#include "dtopp/models/diffusion_transformer.h"
#include "dtopp/ops/core/torch.h"

namespace dtopp::inference {
// Samples pictures from noise with a diffusion transformer. v is the model's prediction at x_k and t_k:
//
//   flow, t_k = 1 - k / steps:
//     euler  x_{k+1} = x_k + (t_{k+1} - t_k) v
//     heun   x_{k+1} = x_k + (t_{k+1} - t_k) (v + v') / 2; v' is predicted at Euler's x_{k+1}. The last step
//            is an Euler step.
//   ddpm, from step s = (steps - 1 - k) d to s - d, with d = floor(1000 / steps) and t_k = s / 1000:
//     ddim   x_0 = (x_k - sqrt(1 - a_s) v) / sqrt(a_s);  x_{k+1} = sqrt(a_{s-d}) x_0 + sqrt(1 - a_{s-d}) v.
//            a holds the objective's alpha products (diffusion_transformer.h) and is 1 below step 0. x_0 is
//            not clipped.
//
// Guidance: v = f_none + g (f_given - f_none) if t lies in the guidance interval, ends included; otherwise v
// = f_given. f_given and f_none are the predictions with and without the condition.
//
// Source: Ho and Salimans 2022 (guidance)

enum class SamplerMethod { kEuler, kHeun, kDdim };

constexpr auto enum_names(SamplerMethod) {
  return std::to_array<std::string_view>({"euler", "heun", "ddim"});
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
  virtual Tensor predict(const Tensor& x_BCHW, const Tensor& t_B, const models::Condition& condition) = 0;
};

// A batch of pictures between noise and the last step.
class Sampler {
 public:
  // Samples with the condition `given`. `none` is the condition without class and text; it is unused if g is
  // 1. noise_BCHW is f32 [B, C, H, W], on the model's device. `denoiser` must outlive the sampler.
  Sampler(Denoiser& denoiser, Tensor noise_BCHW, models::Condition given, const models::Condition& none,
          const SamplerOptions& options);

  bool is_done() const { return steps_ == options_.steps; }
  int64_t steps() const { return steps_; }  // steps done
  void step();
  const Tensor& x_BCHW() const { return x_BCHW_; }  // f32, in the model's value range

 private:
  Tensor predict(const Tensor& x_BCHW, double t) const;  // with guidance
  Tensor flow_step() const;
  Tensor ddim_step() const;

  Denoiser& denoiser_;
  models::Condition given_, both_;
  SamplerOptions options_;
  Tensor alpha_, x_BCHW_;
  int64_t steps_ = 0;
};

struct DiffusionModel {
  config::RunConfig config;
  models::ParameterLookup parameter;
  models::DiffusionTransformer model;
  moe::Routing routing;  // without a router for a dense model
  at::Device device = at::kCPU;
};

// Loads the parameters of this kind. Throws CheckpointError if a tensor is missing or has another shape, or
// if kEma is requested and the checkpoint has no EMA.
DiffusionModel load_diffusion_model(const checkpoint::Checkpoint& checkpoint, ParameterKind kind,
                                    const at::Device& device);

// Returns the layout of the training images. Throws CheckpointError if it is missing or damaged.
data::ImageLayout load_image_layout(const checkpoint::Checkpoint& checkpoint);

// A model that denoises with these thresholds. It adds the selected experts to `activations` unless that is
// null. All three must outlive it. predict() is collective if `routing` has the experts of an EP group.
class ModelDenoiser final : public Denoiser {
 public:
  ModelDenoiser(const DiffusionModel& model, const moe::Routing& routing,
                moe::ActivationStatistics* activations = nullptr)
      : model_(model), routing_(routing), activations_(activations) {}
  Tensor predict(const Tensor& x_BCHW, const Tensor& t_B, const models::Condition& condition) override;

 private:
  const DiffusionModel& model_;
  const moe::Routing& routing_;
  moe::ActivationStatistics* activations_;
};

// Returns the targets of active experts that p must be solved for. Empty: p of the checkpoint is used.
//
// The target is `wanted` unless it is 0. With 0, the EMA of a DTop-p model uses the run's own
// routing.experts, because the checkpoint's p belongs to the raw parameters.
//
// Throws: UsageError if the model cannot meet `wanted` (require_target)
std::vector<double> targets_of(const config::RunConfig& config, ParameterKind kind, double wanted);

// Reads the text embeddings that condition sampled pictures: the tensor "text" of a safetensors file,
// zero-padded to the model's text length.
//
// Shapes: "text" F32|F16|BF16 [N, L, S], L <= model.text_length -> f32 [N, text_length, S]
// Throws: DataError if the file is damaged, has no such tensor or holds numbers that are not finite;
//         UsageError if the tensor does not fit the model
Tensor read_text_embeddings(const fs::path& path, const config::ModelConfig& model);

// Picture j starts from noise keyed by (seed, "sample", j) and uses condition j modulo their number. It
// therefore does not depend on the number of pictures, except for the last bits, which depend on its batch.
struct PictureRequest {
  int64_t count = 1;
  std::vector<int64_t> classes;  // picture j has class classes[j % size]; empty: no classes
  Tensor text_NLS;  // picture j has text j % N; f32 on the host, zero-padded; undefined: no texts
  uint64_t seed = 0;
  int64_t batch_size = 16;
  SamplerOptions sampler{};
};

// Pictures first, first + 1, …, in the model's value range, f32 on the host.
struct PictureBatch {
  int64_t first = 0;
  Tensor x0_BCHW;
};

// Samples the pictures of a request in order, batch by batch. All arguments must outlive it.
class PictureSampler {
 public:
  // `stream` names the random numbers of the noise.
  PictureSampler(Denoiser& denoiser, const config::ModelConfig& model, const at::Device& device,
                 const PictureRequest& request, Watch& watch, const char* stream = "sample");

  // Returns nullopt after the last batch. The progress of the watch counts sampler steps of pictures.
  //
  // Throws: Stopped if a stop is requested; NumericalError if a picture is not finite
  std::optional<PictureBatch> next();

 private:
  Denoiser& denoiser_;
  const config::ModelConfig& model_;
  at::Device device_;
  const PictureRequest& request_;
  Watch& watch_;
  RandomStream stream_;
  int64_t first_ = 0;
};

// Returns the thresholds p at which sampling activates `targets` experts per token (solve_thresholds).
//
// The mean is over all t that the sampler visits, with and without the condition. It is measured on 8
// pictures with the conditions of `request` and other noise, sampled with the model's own thresholds. The
// result does not depend on request.count.
//
// Throws:     Stopped if a stop is requested
// Collective: if `model.routing.ranks` is set, every rank, with the same result
moe::Routing solve_for_sampling(const DiffusionModel& model, const PictureRequest& request,
                                const std::vector<double>& targets, Watch& watch);

// Converts latents to the units of the prepared data: x / scale + shift. x0_BCHW is f32 on the host.
Tensor to_latents(const Tensor& x0_BCHW, const data::ImageLayout& layout);

// Returns round((x + 1) 127.5), clipped to 0 … 255, as u8 [B, H, W, C], contiguous on the host.
Tensor to_levels(const Tensor& x0_BCHW);

}  // namespace dtopp::inference

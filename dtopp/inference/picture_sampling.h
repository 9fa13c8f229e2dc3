// Samples pictures from a diffusion transformer.
//
// Picture j starts from noise keyed by (seed, "sample", j) and uses condition j modulo their number. It
// therefore does not depend on the number of pictures, except for the last bits, which depend on its batch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dtopp/base/random.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/inference/diffusion_model.h"
#include "dtopp/inference/watch.h"

namespace dtopp::inference {
struct PictureRequest {
  int64_t count = 1;
  std::vector<int64_t> classes;  // picture j has class classes[j % size]; empty: no classes
  at::Tensor text_NLS;  // picture j has text j % N; f32 on the host, zero-padded; undefined: no texts
  uint64_t seed = 0;
  int64_t batch_size = 16;
  SamplerOptions sampler{};
};

// Pictures first, first + 1, …, in the model's value range, f32 on the host.
struct PictureBatch {
  int64_t first = 0;
  at::Tensor x0_BCHW;
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
at::Tensor to_latents(const at::Tensor& x0_BCHW, const data::ImageLayout& layout);

// Returns round((x + 1) 127.5), clipped to 0 … 255, as u8 [B, H, W, C], contiguous on the host.
at::Tensor to_levels(const at::Tensor& x0_BCHW);

}  // namespace dtopp::inference

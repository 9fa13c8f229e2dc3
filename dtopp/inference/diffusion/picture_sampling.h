// Samples pictures from a diffusion transformer.
//
// Picture j starts from noise keyed by (seed, "sample", j) and uses condition j modulo their number. It
// therefore does not depend on the number of pictures, except for the last bits, which depend on its batch.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dtopp/data/images/image_data.h"
#include "dtopp/inference/diffusion/diffusion_model.h"
#include "dtopp/inference/shared_batches.h"

namespace dtopp {

struct PictureRequest {
  int64_t count = 1;
  std::vector<int64_t> classes;  // picture j has class classes[j % size]; empty: no classes
  at::Tensor text_NLS;  // picture j has text j % N; f32 on the host, zero-padded; undefined: no texts
  uint64_t seed = 0;
  int64_t batch_size = 16;
  SamplerOptions sampler{};
};

// Receives pictures first, first + 1, …, in the model's value range, f32 on the host.
using TakePictures = std::function<void(int64_t first, const at::Tensor& x0_BCHW)>;

// Samples all pictures in order and passes them to `take` batch by batch.
//
// The progress of `hooks` counts sampler steps of pictures: count * steps at the end.
//
// Throws: Stopped if a stop is requested; NumericalError if a picture is not finite
void sample_pictures(const Denoiser& denoise, const ModelConfig& model, const at::Device& device,
                     const PictureRequest& request, const BatchHooks& hooks, const TakePictures& take);

// Returns the thresholds p at which sampling activates `targets` experts per token (solve_thresholds).
//
// The mean is over all t that the sampler visits, with and without the condition. It is measured on 8
// pictures with the conditions of `request` and other noise, sampled with the model's own thresholds. The
// result does not depend on request.count.
//
// Throws: Stopped if `stop` returns true
RoutingInputs solve_for_sampling(const DiffusionModel& model, const PictureRequest& request,
                                 const std::vector<double>& targets, const std::function<bool()>& stop);

// Converts latents to the units of the prepared data: x / scale + shift. x0_BCHW is f32 on the host.
at::Tensor to_latents(const at::Tensor& x0_BCHW, const ImageLayout& layout);

// Returns round((x + 1) 127.5), clipped to 0 … 255, as u8 [B, H, W, C], contiguous on the host.
at::Tensor to_levels(const at::Tensor& x0_BCHW);

}  // namespace dtopp

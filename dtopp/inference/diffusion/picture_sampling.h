// Pictures of a diffusion transformer, each the same however many are made with it: picture j starts from
// noise keyed by (seed, "sample", j), and takes its turn among the conditions. Equal but for the last bits of
// what is computed in one batch.
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
  std::vector<int64_t> classes;  // picture j is of classes[j % size]; empty: the model has none
  at::Tensor text_NLS;           // likewise, f32 on the host, padded with zeros; undefined: there is none
  uint64_t seed = 0;
  int64_t batch_size = 16;
  SamplerOptions sampler{};
};

// Pictures first, first + 1, … as the model sees them, f32 on the host.
using TakePictures = std::function<void(int64_t first, const at::Tensor& x0_BCHW)>;

// Hands out all pictures in order, batch by batch. `hooks` counts steps of pictures: count * steps in the
// end. Stopped; NumericalError where a picture is not finite.
void sample_pictures(const Denoiser& denoise, const ModelConfig& model, const at::Device& device,
                     const PictureRequest& request, const BatchHooks& hooks, const TakePictures& take);

// p at which the tokens that `request` gives the model choose `targets` experts on average
// (solve_thresholds): over all t that the sampler visits, with and without the condition. Solved on a few
// pictures of the same conditions and other noise, sampled with the model's thresholds; whatever
// request.count. Stopped.
RoutingInputs solve_for_sampling(const DiffusionModel& model, const PictureRequest& request,
                                 const std::vector<double>& targets, const std::function<bool()>& stop);

// Latents in the units they were prepared in: x / scale + shift. x0_BCHW f32 on the host.
at::Tensor to_latents(const at::Tensor& x0_BCHW, const ImageLayout& layout);

// round((x + 1) 127.5), clipped to 0 … 255. u8 [B, H, W, C], contiguous on the host.
at::Tensor to_levels(const at::Tensor& x0_BCHW);

}  // namespace dtopp

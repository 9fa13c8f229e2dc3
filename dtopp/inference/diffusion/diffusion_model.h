// A diffusion transformer out of a checkpoint, for sampling and evaluation: fp32, with the checkpoint's p.
#pragma once

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/inference/diffusion/sampler.h"
#include "dtopp/models/diffusion_transformer/diffusion_transformer.h"

namespace dtopp {

// The parameters as the optimiser left them, or their moving average.
enum class ParameterKind { kRaw, kAverage };

struct DiffusionModel {
  RunConfig config;
  ParameterLookup parameter;
  DiffusionTransformer model;
  RoutingInputs routing;  // p of each layer; none for a dense model
  at::Device device = at::kCPU;
};

// CheckpointError where a tensor is missing or of another shape, and where the average is wanted of a
// checkpoint without one.
DiffusionModel load_diffusion_model(const Checkpoint& checkpoint, ParameterKind kind,
                                    const at::Device& device);

// What the checkpoint's model was trained on. CheckpointError where it does not say or is damaged.
ImageLayout load_image_layout(const Checkpoint& checkpoint);

// predict() of the model. Whom its routers choose is added to `activations`, where that is given. Both must
// outlive it.
Denoiser denoiser_of(const DiffusionModel& model, const RoutingInputs& routing,
                     ActivationStatistics* activations = nullptr);

// The numbers of experts that p is to be solved for: `wanted`, or where that is 0 those the run was trained
// for, if it is the average that is used. Empty: p stays as it is. UsageError where `wanted` cannot be.
std::vector<double> targets_of(const RunConfig& config, ParameterKind kind, double wanted);

}  // namespace dtopp

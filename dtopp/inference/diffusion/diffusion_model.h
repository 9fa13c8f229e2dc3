// Loads a diffusion transformer for sampling and evaluation: fp32 parameters and the router.
#pragma once

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/data/images/image_data.h"
#include "dtopp/inference/checkpoint_tensors.h"
#include "dtopp/inference/diffusion/sampler.h"
#include "dtopp/models/diffusion_transformer.h"

namespace dtopp::inference {

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
  at::Tensor predict(const at::Tensor& x_BCHW, const at::Tensor& t_B,
                     const models::Condition& condition) override;

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

}  // namespace dtopp::inference

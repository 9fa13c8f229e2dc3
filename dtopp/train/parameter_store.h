// The tensors of a run: fp32 masters, Adam moments, fp32 gradients, and the copies the model computes with.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/config/run_config.h"
#include "dtopp/models/parameters.h"
#include "dtopp/ops/torch.h"

namespace dtopp {

class ParameterStore {
 public:
  // compute: at::kFloat or at::kBFloat16, and the device where everything lies. Nothing is initialised.
  ParameterStore(std::vector<ParameterSpec> specs, const at::TensorOptions& compute);

  void initialise(uint64_t seed);
  // Parameters and, with `moments`, the optimiser's. CheckpointError where the checkpoint lacks one.
  void load(const Checkpoint& checkpoint, bool moments);

  // The tensor the model computes with: a leaf that collects gradients. The master itself in fp32.
  at::Tensor compute(const std::string& name) const;

  // After each micro-batch's backward: adds the compute copies' gradients to the fp32 gradients.
  void collect_gradients();
  void clear_gradients();
  // Global norm over all parameters, f32 []; NaN or infinite where any gradient is.
  at::Tensor gradient_norm() const;

  // One AdamW update (decoupled decay on the specs that have it) with gradients divided by `divisor` (f32
  // []), then the compute copies are refreshed. Nothing changes where `applied`, bool [], is false.
  void adamw_step(const OptimizerConfig& config, double lr, const at::Tensor& divisor,
                  const at::Tensor& applied);

  // For a checkpoint, to be read while the store does not step: from a device piece by piece, on a CPU
  // without a copy.
  std::vector<TensorSource> parameter_sources() const;
  std::vector<TensorSource> moment_sources() const;

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const at::Device& device() const { return device_; }
  const at::Tensor& master(const std::string& name) const { return masters_.at(index_.at(name)); }
  // The fp32 gradient so far; undefined where none has come.
  const at::Tensor& gradient(const std::string& name) const { return gradients_.at(index_.at(name)); }

 private:
  void refresh_copies();

  std::vector<ParameterSpec> specs_;
  at::Device device_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<at::Tensor> masters_, exp_avg_, exp_avg_sq_;
  at::Tensor updates_;                 // f32 []: AdamW updates so far
  std::vector<at::Tensor> compute_;    // shares storage with the master where that is computed with directly
  std::vector<at::Tensor> gradients_;  // fp32
  std::vector<at::Tensor> converted_;  // where those of bf16 copies are, kept from step to step
};

}  // namespace dtopp

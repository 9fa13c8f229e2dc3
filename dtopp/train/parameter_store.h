// The tensors of a run: fp32 masters, Adam moments, fp32 gradients, the copies the model computes with, and
// where it is wanted a moving average of the masters.
#pragma once

#include <functional>
#include <span>
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

  // From now on every applied adamw_step moves an average of the parameters, which begins as they are now:
  //   average <- d average + (1 - d) parameter,  d = min(decay, (1 + n) / (10 + n))
  // n: the updates applied so far, this one included.
  void keep_average(double decay);
  // The average of a parameter, f32. Only where one is kept, like load_average.
  const at::Tensor& average(const std::string& name) const { return averages_.at(index_.at(name)); }
  // For a checkpoint, under the parameters' own names; as parameter_sources. None where no average is kept.
  std::vector<TensorSource> average_sources() const { return sources_of(averages_); }
  // `read` gives the bytes that average_sources wrote of a name and shape.
  using ReadTensor =
      std::function<std::span<const std::byte>(const std::string& name, const std::vector<int64_t>& shape)>;
  void load_average(const ReadTensor& read);

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
  std::vector<TensorSource> parameter_sources() const { return sources_of(masters_); }
  std::vector<TensorSource> moment_sources() const;

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const at::Device& device() const { return device_; }
  const at::Tensor& master(const std::string& name) const { return masters_.at(index_.at(name)); }
  // The fp32 gradient so far; undefined where none has come.
  const at::Tensor& gradient(const std::string& name) const { return gradients_.at(index_.at(name)); }

 private:
  void refresh_copies();
  std::vector<TensorSource> sources_of(const std::vector<at::Tensor>& tensors) const;
  void move_average(const at::Tensor& applied);

  std::vector<ParameterSpec> specs_;
  at::Device device_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<at::Tensor> masters_, exp_avg_, exp_avg_sq_;
  double average_decay_ = 0;
  std::vector<at::Tensor> averages_;   // fp32; none unless kept
  at::Tensor updates_;                 // f32 []: AdamW updates so far
  std::vector<at::Tensor> compute_;    // shares storage with the master where that is computed with directly
  std::vector<at::Tensor> gradients_;  // fp32
  std::vector<at::Tensor> converted_;  // where those of bf16 copies are, kept from step to step
};

}  // namespace dtopp

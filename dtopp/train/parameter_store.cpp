#include "dtopp/train/parameter_store.h"

#include "dtopp/models/initialisation.h"
#include "dtopp/ops/host_copy.h"

namespace dtopp {
namespace {

TensorSource source_of(const std::string& name, const at::Tensor& tensor) {
  return {name, "F32", tensor.sizes().vec(), tensor.nbytes(),
          [tensor](const TakeBytes& take) { copy_to_bytes(tensor, take); }};
}

}  // namespace

ParameterStore::ParameterStore(std::vector<ParameterSpec> specs, const at::TensorOptions& compute)
    : specs_(std::move(specs)), device_(compute.device()) {
  const at::ScalarType compute_type = c10::typeMetaToScalarType(compute.dtype());
  const auto fp32 = at::device(device_).dtype(at::kFloat);
  updates_ = at::zeros({}, fp32);
  for (const ParameterSpec& spec : specs_) {
    index_.emplace(spec.name, masters_.size());
    const at::Tensor master = at::zeros(spec.shape, fp32);
    masters_.push_back(master);
    exp_avg_.push_back(at::zeros_like(master));
    exp_avg_sq_.push_back(at::zeros_like(master));
    // detach(): a leaf of its own over the same storage, so that the master itself never joins a graph.
    const bool direct = compute_type == at::kFloat || !spec.compute_precision();
    compute_.push_back((direct ? master.detach() : master.to(compute_type)).requires_grad_());
  }
  gradients_.resize(specs_.size());
  converted_.resize(specs_.size());
}

void ParameterStore::initialise(uint64_t seed) {
  for (size_t i = 0; i < specs_.size(); ++i) dtopp::initialise(specs_[i], seed, masters_[i]);
  refresh_copies();
}

void ParameterStore::load(const Checkpoint& checkpoint, bool moments) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ParameterSpec& spec = specs_[i];
    copy_from_bytes(checkpoint.parameter(spec.name, spec.shape), masters_[i]);
    if (!moments) continue;
    copy_from_bytes(checkpoint.moment(spec.name + ".exp_avg", spec.shape), exp_avg_[i]);
    copy_from_bytes(checkpoint.moment(spec.name + ".exp_avg_sq", spec.shape), exp_avg_sq_[i]);
  }
  if (moments) updates_.fill_(checkpoint.state().step - checkpoint.state().skipped_steps);
  refresh_copies();
}

at::Tensor ParameterStore::compute(const std::string& name) const { return compute_.at(index_.at(name)); }

void ParameterStore::refresh_copies() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (compute_[i].const_data_ptr() != masters_[i].const_data_ptr()) compute_[i].copy_(masters_[i]);
  }
}

void ParameterStore::collect_gradients() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < specs_.size(); ++i) {
    at::Tensor& gradient = compute_[i].mutable_grad();
    if (!gradient.defined()) continue;
    if (gradients_[i].defined()) {
      gradients_[i].add_(gradient);
    } else if (gradient.scalar_type() == at::kFloat) {
      gradients_[i] = gradient.contiguous();
    } else {
      if (!converted_[i].defined()) converted_[i] = at::empty_like(masters_[i]);
      gradients_[i] = converted_[i].copy_(gradient);
    }
    gradient.reset();
  }
}

void ParameterStore::clear_gradients() {
  for (at::Tensor& gradient : gradients_) gradient.reset();
  for (at::Tensor& leaf : compute_) leaf.mutable_grad().reset();
}

at::Tensor ParameterStore::gradient_norm() const {
  std::vector<at::Tensor> present;
  for (const at::Tensor& gradient : gradients_) {
    if (gradient.defined()) present.push_back(gradient);
  }
  if (present.empty()) return at::zeros({}, updates_.options());
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(present)));
}

void ParameterStore::adamw_step(const OptimizerConfig& config, double lr, const at::Tensor& divisor,
                                const at::Tensor& applied) {
  const at::NoGradGuard no_grad;
  updates_ += applied;
  const at::Tensor skipped = applied.logical_not().to(at::kFloat);
  for (const bool decay : {true, false}) {
    std::vector<at::Tensor> parameters, gradients, exp_avg, exp_avg_sq;
    for (size_t i = 0; i < specs_.size(); ++i) {
      if (specs_[i].weight_decay() != decay) continue;
      // A parameter no loss reached (an unused theta, say) still decays and lets its moments fade.
      if (!gradients_[i].defined()) gradients_[i] = at::zeros_like(masters_[i]);
      parameters.push_back(masters_[i]);
      gradients.push_back(gradients_[i]);
      exp_avg.push_back(exp_avg_[i]);
      exp_avg_sq.push_back(exp_avg_sq_[i]);
    }
    const std::vector<at::Tensor> updates(parameters.size(), updates_);
    at::_fused_adamw_(parameters, gradients, exp_avg, exp_avg_sq, {}, updates, lr, config.betas[0],
                      config.betas[1], decay ? config.weight_decay : 0.0, config.eps, /*amsgrad=*/false,
                      /*maximize=*/false, divisor,
                      /*found_inf=*/skipped);
  }
  refresh_copies();
  move_average(applied);
}

void ParameterStore::keep_average(double decay) {
  average_decay_ = decay;
  averages_.clear();
  for (const at::Tensor& master : masters_) averages_.push_back(master.clone());
}

void ParameterStore::move_average(const at::Tensor& applied) {
  if (averages_.empty()) return;
  // In f64: an f32 of d leaves 1 - d few digits.
  const at::Tensor n = updates_.to(at::kDouble);
  const at::Tensor decay = ((n + 1) / (n + 10)).clamp_max(average_decay_);
  const at::Tensor share = ((1 - decay) * applied).to(at::kFloat);
  for (size_t i = 0; i < specs_.size(); ++i) averages_[i].lerp_(masters_[i], share);
}

void ParameterStore::load_average(const ReadTensor& read) {
  for (size_t i = 0; i < specs_.size(); ++i)
    copy_from_bytes(read(specs_[i].name, specs_[i].shape), averages_.at(i));
}

std::vector<TensorSource> ParameterStore::sources_of(const std::vector<at::Tensor>& tensors) const {
  std::vector<TensorSource> sources;
  for (size_t i = 0; i < tensors.size(); ++i) sources.push_back(source_of(specs_[i].name, tensors[i]));
  return sources;
}

std::vector<TensorSource> ParameterStore::moment_sources() const {
  std::vector<TensorSource> sources;
  for (size_t i = 0; i < specs_.size(); ++i) {
    sources.push_back(source_of(specs_[i].name + ".exp_avg", exp_avg_[i]));
    sources.push_back(source_of(specs_[i].name + ".exp_avg_sq", exp_avg_sq_[i]));
  }
  return sources;
}

}  // namespace dtopp

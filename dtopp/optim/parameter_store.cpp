#include "dtopp/optim/parameter_store.h"

#include <algorithm>

#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/optimizer/squared_norms.h"
#include "dtopp/parameters/initialisation.h"

namespace dtopp::optim {
namespace {

constexpr size_t kNone = SIZE_MAX;

}  // namespace

ParameterStore::ParameterStore(std::vector<parameters::ParameterSpec> specs, const at::TensorOptions& compute,
                               const config::OptimizerConfig& optimizer, distributed::ProcessGroups groups,
                               bool reproducible)
    : specs_(std::move(specs)),
      device_(compute.device()),
      groups_(std::move(groups)),
      optimizer_(make_optimizer(optimizer)) {
  const at::ScalarType compute_type = c10::typeMetaToScalarType(compute.dtype());
  const auto fp32 = at::device(device_).dtype(at::kFloat);
  const int64_t ep_size = groups_.dims().ep_size;
  updates_ = at::zeros({}, fp32);
  std::vector<int64_t> chunk_indices;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const parameters::ParameterSpec& spec = specs_[i];
    index_.emplace(spec.name, i);
    const distributed::ShardLayout& layout =
        layouts_.emplace_back(spec.count(), spec.num_experts(), static_cast<int64_t>(i), groups_.dims(),
                              optimizer_->shard_policy(spec));
    const distributed::ElementRange chunks = layout.local_chunks(groups_.rank());
    std::vector<int64_t> offsets = {0};
    for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      chunk_indices.push_back(num_chunks_ + chunk);
      offsets.push_back(offsets.back() + layout.chunk(chunk).size());
    }
    chunk_offsets_.push_back(ops::to_device(at::tensor(offsets, at::kLong), device_));
    num_chunks_ += layout.num_chunks();
    std::vector<int64_t> shape = spec.shape;
    if (spec.role == parameters::ParameterRole::kExpert) shape[0] /= ep_size;
    const bool direct = compute_type == at::kFloat || !spec.compute_precision();
    const at::Tensor copy = at::zeros(shape, fp32.dtype(direct ? at::kFloat : compute_type));
    const int64_t size = local_shard(i).size();
    // detach() makes a separate leaf over the same storage, so the main parameter never joins an autograd
    // graph.
    model_params_.push_back(copy.detach().requires_grad_());
    main_params_.push_back(direct ? copy.view(-1).narrow(0, offset(i), size) : at::zeros({size}, fp32));
    slots_.emplace_back();
    for (size_t slot = 0; slot < optimizer_->slots(spec).size(); ++slot)
      slots_.back().push_back(at::zeros({size}, fp32));
  }
  chunk_indices_ = ops::to_device(at::tensor(chunk_indices, at::kLong), device_);
  make_reducers(reproducible);
}

void ParameterStore::make_reducers(bool reproducible) {
  const int64_t ep_size = groups_.dims().ep_size;
  std::vector<distributed::Shards> of_node_shards, of_ep_shards, of_wholes;
  ep_index_.assign(specs_.size(), kNone);
  for (size_t i = 0; i < specs_.size(); ++i) {
    of_node_shards.push_back(layouts_[i].shards_across_nodes(groups_.rank()));
    of_ep_shards.push_back(layouts_[i].shards_in_node(groups_.rank()));
    if (ep_size == 1 || specs_[i].role == parameters::ParameterRole::kExpert) continue;
    ep_index_[i] = ep_parameters_.size();
    ep_parameters_.push_back(i);
    of_wholes.push_back(layouts_[i].shards_in_ep_group());
  }
  edp_inter_node_reducer_ = std::make_unique<distributed::BucketedReducer>(
      *groups_.edp_inter_node, std::move(of_node_shards), device_);
  edp_reducer_ = std::make_unique<distributed::BucketedReducer>(
      *groups_.edp_intra_node, std::move(of_ep_shards), device_, edp_inter_node_reducer_.get());
  SharedGradients shared;
  if (ep_size > 1) {
    ep_reducer_ = std::make_unique<distributed::BucketedReducer>(*groups_.ep, std::move(of_wholes), device_);
    shared = {ep_reducer_.get(), ep_parameters_};
  }
  gradient_accumulator_ = std::make_unique<GradientAccumulator>(
      model_params_, reproducible,
      [reducer = edp_reducer_.get()](size_t i, at::Tensor sum) { reducer->add(i, std::move(sum)); },
      std::move(shared));
}

int64_t ParameterStore::offset(size_t parameter) const {
  const bool is_expert = specs_[parameter].role == parameters::ParameterRole::kExpert;
  const int64_t ep_rank = groups_.dims().ep_rank(groups_.rank());
  return local_shard(parameter).begin - (is_expert ? layouts_[parameter].ep_shard(ep_rank).begin : 0);
}

at::Tensor ParameterStore::ep_shard(size_t parameter) const {
  const distributed::ElementRange ep_shard =
      layouts_[parameter].ep_shard(groups_.dims().ep_rank(groups_.rank()));
  const at::Tensor flat = model_params_[parameter].view(-1);
  return flat.numel() == ep_shard.size() ? flat : flat.narrow(0, ep_shard.begin, ep_shard.size());
}

at::Tensor ParameterStore::model_param(const std::string& name) const {
  const size_t i = index_.at(name);
  edp_reducer_->wait_all_gather(i);
  if (ep_index_[i] != kNone) ep_reducer_->wait_all_gather(ep_index_[i]);
  return model_params_[i];
}

void ParameterStore::finish_all_gather() const {
  edp_reducer_->finish_all_gather();
  if (ep_reducer_) ep_reducer_->finish_all_gather();
}

void ParameterStore::initialise(uint64_t seed) {
  initialise([&](const auto& spec, at::Tensor& whole) { parameters::initialise(spec, seed, whole); });
}

void ParameterStore::initialise(FillParameter fill) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < specs_.size(); ++i) {
    at::Tensor whole = at::empty(specs_[i].shape, updates_.options());
    fill(specs_[i], whole);
    main_params_[i].copy_(whole.view(-1).narrow(0, local_shard(i).begin, local_shard(i).size()));
    const int64_t first = local_shard(i).begin - offset(i);
    model_params_[i].view(-1).copy_(whole.view(-1).narrow(0, first, model_params_[i].numel()));
  }
}

void ParameterStore::refresh_copies() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> ep_shards, wholes;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const at::Tensor mine = model_params_[i].view(-1).narrow(0, offset(i), local_shard(i).size());
    if (mine.const_data_ptr() != main_params_[i].const_data_ptr()) mine.copy_(main_params_[i]);
    ep_shards.push_back(ep_shard(i));
  }
  edp_reducer_->start_all_gather(std::move(ep_shards), {});
  if (!ep_reducer_) return;
  for (const size_t i : ep_parameters_) wholes.push_back(model_params_[i]);
  distributed::BucketedReducer::Source source;  // without others nothing is to be waited for
  if (edp_reducer_->has_others()) source = {edp_reducer_.get(), ep_parameters_};
  ep_reducer_->start_all_gather(std::move(wholes), std::move(source));
}

// Ranges of the local shard for updates: one per chunk on a CPU, because the tail of a vectorized loop
// depends on its length and results must not depend on sharding. A device has no such tails, and 10^5 tensors
// would cost the host more than the update.
std::vector<distributed::ElementRange> ParameterStore::update_ranges(size_t parameter) const {
  const distributed::ElementRange local = local_shard(parameter);
  std::vector<distributed::ElementRange> ranges;
  if (!device_.is_cpu()) {
    if (local.size() > 0) ranges.push_back({0, local.size()});
    return ranges;
  }
  const distributed::ShardLayout& layout = layouts_[parameter];
  const distributed::ElementRange mine = layout.local_chunks(groups_.rank());
  for (int64_t chunk = mine.begin; chunk < mine.end; ++chunk)
    ranges.push_back(layout.chunk(chunk).from(local.begin));
  return ranges;
}

at::Tensor ParameterStore::squared_norms() const {
  at::Tensor squares = at::zeros({num_chunks_}, updates_.options().dtype(at::kDouble));
  std::vector<at::Tensor> local_shards;
  for (size_t i = 0; i < specs_.size(); ++i)
    local_shards.push_back(ops::squared_norms(gradients_[i], chunk_offsets_[i]));
  return squares.index_copy_(0, chunk_indices_, at::cat(local_shards));
}

void ParameterStore::step(const LearningRates& rates, const at::Tensor& divisor, const at::Tensor& applied) {
  const at::NoGradGuard no_grad;
  updates_ += applied;
  std::vector<ParameterShard> shards;
  for (size_t i = 0; i < specs_.size(); ++i)
    shards.push_back({&specs_[i], main_params_[i], gradients_[i], slots_[i], update_ranges(i)});
  optimizer_->step(shards, {rates, divisor, applied, updates_});
  gradients_.assign(gradients_.size(), at::Tensor());
  refresh_copies();
  update_ema(applied);
}

void ParameterStore::enable_ema(double decay) {
  ema_decay_ = decay;
  ema_params_.clear();
  for (const at::Tensor& main_param : main_params_) ema_params_.push_back(main_param.clone());
}

void ParameterStore::update_ema(const at::Tensor& applied) {
  if (ema_params_.empty()) return;
  // Computed in f64, because 1 - d has few digits in f32.
  const at::Tensor n = updates_.to(at::kDouble);
  const at::Tensor decay = ((n + 1) / (n + 10)).clamp_max(ema_decay_);
  const at::Tensor share = ((1 - decay) * applied).to(at::kFloat);
  for (size_t i = 0; i < specs_.size(); ++i)
    for (const distributed::ElementRange& range : update_ranges(i))
      ema_params_[i]
          .narrow(0, range.begin, range.size())
          .lerp_(main_params_[i].narrow(0, range.begin, range.size()), share);
}

void ParameterStore::swap_ema() {
  const at::NoGradGuard no_grad;
  finish_all_gather();
  for (size_t i = 0; i < specs_.size(); ++i) {
    const at::Tensor parameter = main_params_[i].clone();
    main_params_[i].copy_(ema_params_.at(i));
    ema_params_[i].copy_(parameter);
  }
  refresh_copies();
}

}  // namespace dtopp::optim

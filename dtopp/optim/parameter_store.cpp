#include "dtopp/optim/parameter_store.h"

#include <algorithm>

#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/optimizer/squared_norms.h"
#include "dtopp/parameters/initialisation.h"

namespace dtopp {
namespace {

constexpr size_t kNone = SIZE_MAX;

}  // namespace

ParameterStore::ParameterStore(std::vector<ParameterSpec> specs, const at::TensorOptions& compute,
                               ProcessGroups groups, bool reproducible)
    : specs_(std::move(specs)), device_(compute.device()), groups_(std::move(groups)) {
  const at::ScalarType compute_type = c10::typeMetaToScalarType(compute.dtype());
  const auto fp32 = at::device(device_).dtype(at::kFloat);
  const int64_t ep_size = groups_.dims().ep_size;
  updates_ = at::zeros({}, fp32);
  std::vector<int64_t> unit_places;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ParameterSpec& spec = specs_[i];
    index_.emplace(spec.name, i);
    const Partition& partition =
        partitions_.emplace_back(spec.count(), spec.pieces(), static_cast<int64_t>(i), groups_.dims());
    const ElementRange units = partition.kept_units(groups_.rank());
    std::vector<int64_t> offsets = {0};
    for (int64_t unit = units.begin; unit < units.end; ++unit) {
      unit_places.push_back(num_units_ + unit);
      offsets.push_back(offsets.back() + partition.unit(unit).size());
    }
    unit_offsets_.push_back(to_device(at::tensor(offsets, at::kLong), device_));
    num_units_ += partition.num_units();
    std::vector<int64_t> shape = spec.shape;
    if (spec.role == ParameterRole::kExpert) shape[0] /= ep_size;
    const bool direct = compute_type == at::kFloat || !spec.compute_precision();
    const at::Tensor copy = at::zeros(shape, fp32.dtype(direct ? at::kFloat : compute_type));
    const int64_t size = kept(i).size();
    // detach() makes a separate leaf over the same storage, so the main parameter never joins an autograd
    // graph.
    compute_.push_back(copy.detach().requires_grad_());
    masters_.push_back(direct ? copy.view(-1).narrow(0, offset(i), size) : at::zeros({size}, fp32));
    exp_avg_.push_back(at::zeros({size}, fp32));
    exp_avg_sq_.push_back(at::zeros({size}, fp32));
  }
  unit_places_ = to_device(at::tensor(unit_places, at::kLong), device_);
  make_exchanges(reproducible);
}

void ParameterStore::make_exchanges(bool reproducible) {
  const ParallelDims dims = groups_.dims();
  const int64_t ep_rank = dims.ep_rank(groups_.rank()), edp_rank = dims.edp_rank(groups_.rank());
  const int64_t node = edp_rank / dims.local_edp_size(), first = node * dims.local_edp_size();
  std::vector<Shards> of_parts, of_slices, of_wholes;
  place_in_block_.assign(specs_.size(), kNone);
  for (size_t i = 0; i < specs_.size(); ++i) {
    const Partition& partition = partitions_[i];
    Shards& among_nodes = of_parts.emplace_back();
    const int64_t part = partition.part(groups_.rank()).begin, slice = partition.slice(ep_rank).begin;
    for (int64_t other = edp_rank - first; other < dims.edp_size; other += dims.local_edp_size())
      among_nodes.push_back(partition.kept(dims.rank(ep_rank, other)).from(part));
    Shards& among_replicas = of_slices.emplace_back();
    for (int64_t other = first; other < first + dims.local_edp_size(); ++other)
      among_replicas.push_back(partition.part(dims.rank(ep_rank, other)).from(slice));
    if (dims.ep_size == 1 || specs_[i].role == ParameterRole::kExpert) continue;
    place_in_block_[i] = in_block_parameters_.size();
    in_block_parameters_.push_back(i);
    Shards& in_block = of_wholes.emplace_back();
    for (int64_t other = 0; other < dims.ep_size; ++other) in_block.push_back(partition.slice(other));
  }
  among_nodes_ = std::make_unique<ShardExchange>(*groups_.edp_inter_node, std::move(of_parts), device_);
  among_replicas_ = std::make_unique<ShardExchange>(*groups_.edp_intra_node, std::move(of_slices), device_,
                                                    among_nodes_.get());
  SharedGradients shared;
  if (dims.ep_size > 1) {
    in_block_ = std::make_unique<ShardExchange>(*groups_.ep, std::move(of_wholes), device_);
    shared = {in_block_.get(), in_block_parameters_};
  }
  gradient_sums_ = std::make_unique<GradientSums>(
      compute_, reproducible,
      [exchange = among_replicas_.get()](size_t i, at::Tensor sum) { exchange->add(i, std::move(sum)); },
      std::move(shared));
}

int64_t ParameterStore::offset(size_t parameter) const {
  const bool sliced = specs_[parameter].role == ParameterRole::kExpert;
  const int64_t ep_rank = groups_.dims().ep_rank(groups_.rank());
  return kept(parameter).begin - (sliced ? partitions_[parameter].slice(ep_rank).begin : 0);
}

at::Tensor ParameterStore::slice(size_t parameter) const {
  const ElementRange slice = partitions_[parameter].slice(groups_.dims().ep_rank(groups_.rank()));
  const at::Tensor flat = compute_[parameter].view(-1);
  return flat.numel() == slice.size() ? flat : flat.narrow(0, slice.begin, slice.size());
}

at::Tensor ParameterStore::compute(const std::string& name) const {
  const size_t i = index_.at(name);
  among_replicas_->wait_gathered(i);
  if (place_in_block_[i] != kNone) in_block_->wait_gathered(place_in_block_[i]);
  return compute_[i];
}

void ParameterStore::finish_gather() const {
  among_replicas_->finish_gather();
  if (in_block_) in_block_->finish_gather();
}

void ParameterStore::initialise(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < specs_.size(); ++i) {
    at::Tensor whole = at::empty(specs_[i].shape, updates_.options());
    dtopp::initialise(specs_[i], seed, whole);
    masters_[i].copy_(whole.view(-1).narrow(0, kept(i).begin, kept(i).size()));
    const int64_t first = kept(i).begin - offset(i);
    compute_[i].view(-1).copy_(whole.view(-1).narrow(0, first, compute_[i].numel()));
  }
}

void ParameterStore::refresh_copies() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> slices, wholes;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const at::Tensor mine = compute_[i].view(-1).narrow(0, offset(i), kept(i).size());
    if (mine.const_data_ptr() != masters_[i].const_data_ptr()) mine.copy_(masters_[i]);
    slices.push_back(slice(i));
  }
  among_replicas_->start_gather(std::move(slices));
  if (!in_block_) return;
  for (const size_t i : in_block_parameters_) wholes.push_back(compute_[i]);
  std::function<void(size_t)> before;  // empty: nothing to wait for, so buckets are gathered ahead
  if (among_replicas_->has_others())
    before = [this](size_t i) { among_replicas_->wait_gathered(in_block_parameters_[i]); };
  in_block_->start_gather(std::move(wholes), std::move(before));
}

// Appends the tensors for elementwise updates: one per chunk on a CPU, because the tail of a vectorized loop
// depends on its length and results must not depend on sharding. A device has no such tails, and 10^5 tensors
// would cost the host more than the update.
void ParameterStore::add_updated(const at::Tensor& kept, size_t parameter,
                                 std::vector<at::Tensor>& updated) const {
  if (!device_.is_cpu()) {
    if (kept.numel() > 0) updated.push_back(kept);
    return;
  }
  const Partition& partition = partitions_[parameter];
  const ElementRange mine = partition.kept_units(groups_.rank());
  const int64_t begin = this->kept(parameter).begin;
  for (int64_t unit = mine.begin; unit < mine.end; ++unit) {
    const ElementRange range = partition.unit(unit);
    updated.push_back(kept.narrow(0, range.begin - begin, range.size()));
  }
}

at::Tensor ParameterStore::squared_norms() const {
  at::Tensor squares = at::zeros({num_units_}, updates_.options().dtype(at::kDouble));
  std::vector<at::Tensor> kept;
  for (size_t i = 0; i < specs_.size(); ++i)
    kept.push_back(dtopp::squared_norms(gradients_[i], unit_offsets_[i]));
  return squares.index_copy_(0, unit_places_, at::cat(kept));
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
      add_updated(masters_[i], i, parameters);
      add_updated(gradients_[i], i, gradients);
      add_updated(exp_avg_[i], i, exp_avg);
      add_updated(exp_avg_sq_[i], i, exp_avg_sq);
    }
    if (parameters.empty()) continue;
    const std::vector<at::Tensor> updates(parameters.size(), updates_);
    at::_fused_adamw_(parameters, gradients, exp_avg, exp_avg_sq, {}, updates, lr, config.betas[0],
                      config.betas[1], decay ? config.weight_decay : 0.0, config.eps, /*amsgrad=*/false,
                      /*maximize=*/false, divisor,
                      /*found_inf=*/skipped);
  }
  gradients_.assign(gradients_.size(), at::Tensor());
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
  // Computed in f64, because 1 - d has few digits in f32.
  const at::Tensor n = updates_.to(at::kDouble);
  const at::Tensor decay = ((n + 1) / (n + 10)).clamp_max(average_decay_);
  const at::Tensor share = ((1 - decay) * applied).to(at::kFloat);
  std::vector<at::Tensor> averages, masters;
  for (size_t i = 0; i < specs_.size(); ++i) {
    add_updated(averages_[i], i, averages);
    add_updated(masters_[i], i, masters);
  }
  for (size_t i = 0; i < averages.size(); ++i) averages[i].lerp_(masters[i], share);
}

void ParameterStore::swap_average() {
  const at::NoGradGuard no_grad;
  finish_gather();
  for (size_t i = 0; i < specs_.size(); ++i) {
    const at::Tensor parameter = masters_[i].clone();
    masters_[i].copy_(averages_.at(i));
    averages_[i].copy_(parameter);
  }
  refresh_copies();
}

}  // namespace dtopp

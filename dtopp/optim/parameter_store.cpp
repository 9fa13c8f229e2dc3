#include "dtopp/optim/parameter_store.h"

#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/optimizer/squared_norms.h"

namespace dtopp::optim {
namespace {

Tensor in_fp32(const Tensor& gradient) {
  return gradient.defined() ? gradient.to(at::kFloat).contiguous() : gradient;
}

distributed::ElementRange elements_of(uint64_t begin_byte, uint64_t bytes) {
  constexpr auto kElement = static_cast<int64_t>(sizeof(float));
  const auto begin = static_cast<int64_t>(begin_byte) / kElement;
  return {begin, begin + static_cast<int64_t>(bytes) / kElement};
}

TensorSource source_of(const parameters::ParameterSpec& spec, const std::string& suffix = "") {
  return {spec.name + suffix, "F32", spec.shape, static_cast<uint64_t>(spec.count()) * sizeof(float),
          TensorSource::Read()};
}

std::vector<TensorSource> sources_of(const std::vector<parameters::ParameterSpec>& specs) {
  std::vector<TensorSource> sources;
  for (const parameters::ParameterSpec& spec : specs) sources.push_back(source_of(spec));
  return sources;
}

}  // namespace

// Called once per backward pass when the gradient of a parameter is complete: by autograd, or by the op that
// writes the gradient itself.
class GradientAccumulator::Hook : public ops::GradientAccumulationHook {
 public:
  Hook(GradientAccumulator& sums, size_t parameter) : sums_(sums), parameter_(parameter) {}

  // The gradient is undefined if an op has written it or if there is none.
  void operator()(const Tensor& parameter) override {
    if (parameter.grad().defined()) sums_.add(parameter_, std::exchange(parameter.mutable_grad(), Tensor()));
  }
  ops::AccumulationTarget target() override { return sums_.target(parameter_); }
  void complete(const ops::AccumulationTarget& target) override { sums_.complete(parameter_, target); }

 private:
  GradientAccumulator& sums_;
  size_t parameter_;
};

GradientAccumulator::GradientAccumulator(const std::vector<Tensor>& parameters, bool along_tree, Take take,
                                         SharedGradients shared)
    : parameters_(parameters),
      along_tree_(along_tree),
      take_(std::move(take)),
      shared_(std::move(shared)),
      reducer_index_(parameters.size(), kNotShared),
      sums_(parameters.size()),
      reached_(parameters.size()) {
  for (size_t index = 0; index < shared_.parameters.size(); ++index)
    reducer_index_[shared_.parameters[index]] = index;
  for (size_t i = 0; i < parameters.size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(parameters[i], std::make_unique<Hook>(*this, i));
}

GradientAccumulator::~GradientAccumulator() {
  for (const Tensor& parameter : parameters_)
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
}

void GradientAccumulator::begin(int64_t micro_batches) {
  left_ = micro_batches;
  std::fill(reached_.begin(), reached_.end(), 0);
  for (size_t i = 0; i < sums_.size(); ++i) {
    sums_[i].finish();
    if (left_ == 0) take_(i, Tensor());
  }
}

Tensor GradientAccumulator::waiting(size_t parameter) {
  distributed::TreeAccumulator& sum = sums_[parameter];
  // Without a tree, the earlier sum is the only stored leaf, and the new gradient is added to it.
  if (Tensor before; !along_tree_ && (before = sum.finish()).defined()) sum.add(std::move(before));
  return sum.waiting();
}

ops::AccumulationTarget GradientAccumulator::target(size_t parameter) {
  const Tensor& weight = parameters_[parameter];
  Tensor sum = reduces_each(parameter) ? Tensor() : waiting(parameter);
  if (sum.defined()) return {std::move(sum), true};
  // In fp32, autograd's gradient becomes the sum without a copy.
  if (weight.scalar_type() == at::kFloat) return {};
  return {at::empty(weight.sizes(), weight.options().dtype(at::kFloat)), false};
}

// Autograd calls a hook once per backward pass. A second gradient therefore comes from another reader of a
// parameter whose gradient an op has already completed.
void GradientAccumulator::require_first(size_t parameter) const {
  TORCH_CHECK(reached_[parameter] == 0, "GradientAccumulator: parameter ", parameter,
              " got two gradients in one backward pass; an op that completes its gradient must be its only "
              "reader");
}

void GradientAccumulator::complete(size_t parameter, const ops::AccumulationTarget& target) {
  const at::NoGradGuard no_grad;
  require_first(parameter);
  if (!target.add) return add(parameter, target.sum);
  sums_[parameter].added();
  end(parameter);
}

void GradientAccumulator::add(size_t parameter, Tensor gradient) {
  const at::NoGradGuard no_grad;
  require_first(parameter);
  if (reduces_each(parameter)) {
    reached_[parameter] = 1;
    return shared_.reducer->add(reducer_index_[parameter], in_fp32(gradient));
  }
  add_to_sum(parameter, std::move(gradient));
  end(parameter);
}

// Adding a bf16 gradient to an fp32 sum directly moves half as many bytes as converting it first.
void GradientAccumulator::add_to_sum(size_t parameter, Tensor gradient) {
  sums_[parameter].add(waiting(parameter).defined() ? std::move(gradient) : in_fp32(gradient));
}

void GradientAccumulator::end(size_t parameter) {
  reached_[parameter] = 1;
  if (left_ > 1) return;
  Tensor sum = sums_[parameter].finish();
  if (reducer_index_[parameter] == kNotShared) return take_(parameter, std::move(sum));
  shared_.reducer->add(reducer_index_[parameter], std::move(sum));
}

void GradientAccumulator::end_micro_batch() {
  for (size_t i = 0; i < reached_.size(); ++i) {
    if (reached_[i] == 0) add(i, Tensor());
    reached_[i] = 0;
  }
  if (reduces()) {
    const at::NoGradGuard no_grad;
    std::vector<Tensor> sums = shared_.reducer->finish_reduce_scatter();
    for (size_t index = 0; index < sums.size(); ++index) {
      const size_t parameter = shared_.parameters[index];
      add_to_sum(parameter, std::move(sums[index]));
      if (left_ == 1) take_(parameter, sums_[parameter].finish());
    }
  }
  left_ -= 1;
}

ParameterStore::ParameterStore(std::vector<parameters::ParameterSpec> specs, const at::TensorOptions& compute,
                               const config::OptimizerConfig& optimizer, distributed::ProcessGroups groups,
                               bool reproducible)
    : specs_(std::move(specs)),
      device_(compute.device()),
      groups_(std::move(groups)),
      optimizer_(make_optimizer(optimizer, c10::typeMetaToScalarType(compute.dtype()) == at::kBFloat16)) {
  const at::ScalarType compute_type = c10::typeMetaToScalarType(compute.dtype());
  const auto fp32 = at::device(device_).dtype(at::kFloat);
  const int64_t ep_size = groups_.dims().ep_size;
  updates_ = at::zeros({}, fp32);
  std::vector<int64_t> chunk_indices;
  // The work of each rank for matrices that no rank shares. The next goes to the rank with the least.
  std::vector<double> work(groups_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    const parameters::ParameterSpec& spec = specs_[i];
    index_.emplace(spec.name, i);
    const distributed::ShardPolicy policy = optimizer_->shard_policy(spec);
    auto turn = static_cast<int64_t>(i);
    if (policy == distributed::ShardPolicy::kWholeMatrix && spec.num_experts() == 1) {
      turn = std::ranges::min_element(work) - work.begin();
      work[turn] += optimizer_->flops(spec);
    }
    const distributed::ShardLayout& layout =
        layouts_.emplace_back(spec.count(), spec.num_experts(), turn, groups_.dims(), policy);
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
    const Tensor copy = at::zeros(shape, fp32.dtype(direct ? at::kFloat : compute_type));
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
  ep_index_.assign(specs_.size(), kNotShared);
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
      [reducer = edp_reducer_.get()](size_t i, Tensor sum) { reducer->add(i, std::move(sum)); },
      std::move(shared));
}

int64_t ParameterStore::offset(size_t parameter) const {
  const bool is_expert = specs_[parameter].role == parameters::ParameterRole::kExpert;
  const int64_t ep_rank = groups_.dims().ep_rank(groups_.rank());
  return local_shard(parameter).begin - (is_expert ? layouts_[parameter].ep_shard(ep_rank).begin : 0);
}

Tensor ParameterStore::ep_shard(size_t parameter) const {
  const distributed::ElementRange ep_shard =
      layouts_[parameter].ep_shard(groups_.dims().ep_rank(groups_.rank()));
  const Tensor flat = model_params_[parameter].view(-1);
  return flat.numel() == ep_shard.size() ? flat : flat.narrow(0, ep_shard.begin, ep_shard.size());
}

Tensor ParameterStore::model_param(const std::string& name) const {
  const size_t i = index_.at(name);
  edp_reducer_->wait_all_gather(i);
  if (ep_index_[i] != kNotShared) ep_reducer_->wait_all_gather(ep_index_[i]);
  return model_params_[i];
}

void ParameterStore::finish_all_gather() const {
  edp_reducer_->finish_all_gather();
  if (ep_reducer_) ep_reducer_->finish_all_gather();
}

void ParameterStore::initialize(uint64_t seed) {
  initialize([&](const auto& spec, Tensor& whole) { parameters::initialize(spec, seed, whole); });
}

void ParameterStore::initialize(FillParameter fill) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < specs_.size(); ++i) {
    Tensor whole = at::empty(specs_[i].shape, updates_.options());
    fill(specs_[i], whole);
    main_params_[i].copy_(whole.view(-1).narrow(0, local_shard(i).begin, local_shard(i).size()));
    const int64_t first = local_shard(i).begin - offset(i);
    model_params_[i].view(-1).copy_(whole.view(-1).narrow(0, first, model_params_[i].numel()));
  }
}

void ParameterStore::refresh_copies() {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> ep_shards, wholes;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const Tensor mine = model_params_[i].view(-1).narrow(0, offset(i), local_shard(i).size());
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

Tensor ParameterStore::squared_norms() const {
  Tensor squares = at::zeros({num_chunks_}, updates_.options().dtype(at::kDouble));
  std::vector<Tensor> local_shards;
  for (size_t i = 0; i < specs_.size(); ++i)
    local_shards.push_back(ops::squared_norms(gradients_[i], chunk_offsets_[i]));
  return squares.index_copy_(0, chunk_indices_, at::cat(local_shards));
}

void ParameterStore::step(const LearningRates& rates, const Tensor& divisor, const Tensor& applied) {
  const at::NoGradGuard no_grad;
  updates_ += applied;
  std::vector<ParameterShard> shards;
  for (size_t i = 0; i < specs_.size(); ++i)
    shards.push_back({&specs_[i], main_params_[i], gradients_[i], slots_[i], update_ranges(i)});
  optimizer_->step(shards, {rates, divisor, applied, updates_});
  gradients_.assign(gradients_.size(), Tensor());
  refresh_copies();
  update_ema(applied);
}

void ParameterStore::enable_ema(double decay) {
  ema_decay_ = decay;
  ema_params_.clear();
  for (const Tensor& main_param : main_params_) ema_params_.push_back(main_param.clone());
}

void ParameterStore::update_ema(const Tensor& applied) {
  if (ema_params_.empty()) return;
  // Computed in f64, because 1 - d has few digits in f32.
  const Tensor n = updates_.to(at::kDouble);
  const Tensor decay = ((n + 1) / (n + 10)).clamp_max(ema_decay_);
  const Tensor share = ((1 - decay) * applied).to(at::kFloat);
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
    const Tensor parameter = main_params_[i].clone();
    main_params_[i].copy_(ema_params_.at(i));
    ema_params_[i].copy_(parameter);
  }
  refresh_copies();
}

void ParameterStore::copy_local_shard(std::span<const std::byte> bytes, size_t parameter,
                                      const Tensor& local_shard) const {
  const distributed::ElementRange range = this->local_shard(parameter);
  ops::copy_from_bytes(bytes.subspan(static_cast<size_t>(range.begin) * sizeof(float),
                                     static_cast<size_t>(range.size()) * sizeof(float)),
                       local_shard);
}

void ParameterStore::load(const checkpoint::Checkpoint& checkpoint) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    const parameters::ParameterSpec& spec = specs_[i];
    copy_local_shard(checkpoint.parameter(spec.name, spec.shape), i, main_params_[i]);
    const std::vector<std::string> names = optimizer_->slots(spec);
    for (size_t slot = 0; slot < names.size(); ++slot)
      copy_local_shard(checkpoint.slot(spec.name + "." + names[slot], spec.shape), i, slots_[i][slot]);
  }
  updates_.fill_(checkpoint.state().step - checkpoint.state().skipped_steps);
  refresh_copies();
}

void ParameterStore::load_ema(const checkpoint::Checkpoint& checkpoint) {
  for (size_t i = 0; i < specs_.size(); ++i)
    copy_local_shard(checkpoint.ema(specs_[i].name, specs_[i].shape), i, ema_params_.at(i));
}

Tensor ParameterStore::whole(const std::vector<Tensor>& local_shards, size_t parameter) const {
  const parameters::ParameterSpec& spec = specs_.at(parameter);
  const distributed::ShardedTensor tensor{&layouts_[parameter], local_shards.at(parameter)};
  const std::vector<distributed::ShardRequest> on_all(groups_.size(), {&tensor, {0, spec.count()}});
  return distributed::gather_shards(*groups_.world, on_all).view(spec.shape);
}

std::vector<TensorSource> ParameterStore::parameter_sources() const { return sources_of(specs_); }

std::vector<TensorSource> ParameterStore::ema_sources() const {
  return ema_params_.empty() ? std::vector<TensorSource>() : sources_of(specs_);
}

std::vector<TensorSource> ParameterStore::slot_sources() const {
  std::vector<TensorSource> sources;
  for (const parameters::ParameterSpec& spec : specs_)
    for (const std::string& slot : optimizer_->slots(spec)) sources.push_back(source_of(spec, "." + slot));
  return sources;
}

std::vector<Tensor> ParameterStore::saved_shards() const {
  std::vector<Tensor> shards = main_params_;
  for (const std::vector<Tensor>& slots : slots_) shards.insert(shards.end(), slots.begin(), slots.end());
  shards.insert(shards.end(), ema_params_.begin(), ema_params_.end());
  return shards;
}

std::pair<const distributed::ShardLayout*, size_t> ParameterStore::find_saved(
    const checkpoint::TensorByteRange& range) const {
  const std::string& name = range.tensor->name;
  if (range.kind == checkpoint::kModel) return {&layouts_[index_.at(name)], index_.at(name)};
  size_t position = specs_.size();
  if (range.kind == checkpoint::kEma) {
    for (const std::vector<Tensor>& slots : slots_) position += slots.size();
    return {&layouts_[index_.at(name)], position + index_.at(name)};
  }
  const size_t dot = name.rfind('.'), parameter = index_.at(name.substr(0, dot));
  for (size_t i = 0; i < parameter; ++i) position += slots_[i].size();
  const std::vector<std::string> names = optimizer_->slots(specs_[parameter]);
  const auto slot = std::ranges::find(names, name.substr(dot + 1)) - names.begin();
  return {&layouts_[parameter], position + static_cast<size_t>(slot)};
}

void ParameterStore::collect_saved(const std::vector<checkpoint::TensorByteRange>& by_rank,
                                   const std::vector<Tensor>& shards, distributed::Collectives& ranks,
                                   const TakeBytes& take) const {
  std::vector<distributed::ShardedTensor> tensors(by_rank.size());
  std::vector<distributed::ShardRequest> requests(by_rank.size());
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const checkpoint::TensorByteRange& range = by_rank[rank];
    if (!range.tensor) continue;
    const auto [layout, position] = find_saved(range);
    tensors[rank] = {layout, shards.at(position)};
    requests[rank] = {&tensors[rank], elements_of(range.begin, range.count)};
  }
  const Tensor elements = distributed::gather_shards(ranks, requests);
  if (elements.defined()) ops::copy_to_bytes(elements, take);
}

}  // namespace dtopp::optim

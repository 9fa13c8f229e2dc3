#include "dtopp/train/parameter_store.h"

#include <algorithm>

#include "dtopp/models/initialisation.h"
#include "dtopp/ops/host_copy.h"

namespace dtopp {
namespace {

std::vector<int64_t> sizes_of(const std::vector<ParameterSpec>& specs) {
  std::vector<int64_t> sizes;
  for (const ParameterSpec& spec : specs) sizes.push_back(spec.count());
  return sizes;
}

Collectives& alone() {
  static SingleRank rank;
  return rank;
}

}  // namespace

ParameterStore::ParameterStore(std::vector<ParameterSpec> specs, const at::TensorOptions& compute)
    : ParameterStore(std::move(specs), compute, alone()) {}

ParameterStore::ParameterStore(std::vector<ParameterSpec> specs, const at::TensorOptions& compute,
                               Collectives& ranks, bool reproducible)
    : specs_(std::move(specs)), device_(compute.device()) {
  exchange_ = std::make_unique<ShardExchange>(ranks, sizes_of(specs_), device_);
  const at::ScalarType compute_type = c10::typeMetaToScalarType(compute.dtype());
  const auto fp32 = at::device(device_).dtype(at::kFloat);
  updates_ = at::zeros({}, fp32);
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ParameterSpec& spec = specs_[i];
    index_.emplace(spec.name, i);
    const ElementRange kept = exchange_->kept(i);
    const bool direct = compute_type == at::kFloat || !spec.compute_precision();
    const at::Tensor copy = at::zeros(spec.shape, fp32.dtype(direct ? at::kFloat : compute_type));
    masters_.push_back(direct ? copy.view(-1).narrow(0, kept.begin, kept.size())
                              : at::zeros({kept.size()}, fp32));
    exp_avg_.push_back(at::zeros({kept.size()}, fp32));
    exp_avg_sq_.push_back(at::zeros({kept.size()}, fp32));
    // detach(): a leaf of its own over the same storage, so that the master itself never joins a graph.
    compute_.push_back(copy.detach().requires_grad_());
  }
  gradient_sums_ = std::make_unique<GradientSums>(
      compute_, reproducible,
      [exchange = exchange_.get()](size_t i, at::Tensor sum) { exchange->add(i, std::move(sum)); });
}

void ParameterStore::initialise(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < specs_.size(); ++i) {
    at::Tensor whole = at::empty(specs_[i].shape, updates_.options());
    dtopp::initialise(specs_[i], seed, whole);
    const ElementRange kept = exchange_->kept(i);
    masters_[i].copy_(whole.view(-1).narrow(0, kept.begin, kept.size()));
    compute_[i].copy_(whole);
  }
}

void ParameterStore::copy_kept(std::span<const std::byte> bytes, size_t parameter,
                               const at::Tensor& kept) const {
  const ElementRange range = exchange_->kept(parameter);
  copy_from_bytes(bytes.subspan(static_cast<size_t>(range.begin) * sizeof(float),
                                static_cast<size_t>(range.size()) * sizeof(float)),
                  kept);
}

void ParameterStore::load(const Checkpoint& checkpoint, bool moments) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ParameterSpec& spec = specs_[i];
    copy_kept(checkpoint.parameter(spec.name, spec.shape), i, masters_[i]);
    if (!moments) continue;
    copy_kept(checkpoint.moment(spec.name + ".exp_avg", spec.shape), i, exp_avg_[i]);
    copy_kept(checkpoint.moment(spec.name + ".exp_avg_sq", spec.shape), i, exp_avg_sq_[i]);
  }
  if (moments) updates_.fill_(checkpoint.state().step - checkpoint.state().skipped_steps);
  refresh_copies();
}

void ParameterStore::refresh_copies() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ElementRange kept = exchange_->kept(i);
    const at::Tensor mine = compute_[i].view(-1).narrow(0, kept.begin, kept.size());
    if (mine.const_data_ptr() != masters_[i].const_data_ptr()) mine.copy_(masters_[i]);
  }
  exchange_->gather(compute_);
}

// The tensor in units, whole ones at a time: a loop over more than one would end its vectors elsewhere.
void ParameterStore::add_units(const at::Tensor& kept, size_t parameter,
                               std::vector<at::Tensor>& units) const {
  if (kept.numel() == 0) return;
  for (at::Tensor& unit : kept.split(exchange_->partition(parameter).unit()))
    units.push_back(std::move(unit));
}

at::Tensor ParameterStore::squared_norms() const {
  std::vector<at::Tensor> units;
  int64_t count = 0;
  std::vector<int64_t> places;
  for (size_t i = 0; i < specs_.size(); ++i) {
    add_units(gradients_[i], i, units);
    const Partition& partition = exchange_->partition(i);
    const ElementRange kept = partition.units(exchange_->ranks().rank());
    for (int64_t unit = kept.begin; unit < kept.end; ++unit) places.push_back(count + unit);
    count += partition.num_units();
  }
  const at::Tensor squares = at::zeros({count}, updates_.options().dtype(at::kDouble));
  if (units.empty()) return squares;
  const at::Tensor norms = at::stack(at::_foreach_norm(units, 2, at::kDouble));
  return squares.index_copy_(0, to_device(at::tensor(places, at::kLong), device_), norms.square());
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
      add_units(masters_[i], i, parameters);
      add_units(gradients_[i], i, gradients);
      add_units(exp_avg_[i], i, exp_avg);
      add_units(exp_avg_sq_[i], i, exp_avg_sq);
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
  // In f64: an f32 of d leaves 1 - d few digits.
  const at::Tensor n = updates_.to(at::kDouble);
  const at::Tensor decay = ((n + 1) / (n + 10)).clamp_max(average_decay_);
  const at::Tensor share = ((1 - decay) * applied).to(at::kFloat);
  std::vector<at::Tensor> averages, masters;
  for (size_t i = 0; i < specs_.size(); ++i) {
    add_units(averages_[i], i, averages);
    add_units(masters_[i], i, masters);
  }
  for (size_t i = 0; i < averages.size(); ++i) averages[i].lerp_(masters[i], share);
}

void ParameterStore::load_average(const ReadTensor& read) {
  for (size_t i = 0; i < specs_.size(); ++i)
    copy_kept(read(specs_[i].name, specs_[i].shape), i, averages_.at(i));
}

at::Tensor ParameterStore::whole(const std::vector<at::Tensor>& kept, size_t parameter) const {
  const ParameterSpec& spec = specs_.at(parameter);
  return exchange_->collect(parameter, kept.at(parameter), {0, spec.count()}, ShardExchange::kEveryRank)
      .view(spec.shape);
}

TensorSource ParameterStore::source_of(const at::Tensor& kept, size_t parameter,
                                       const std::string& name) const {
  const ParameterSpec& spec = specs_[parameter];
  const int64_t count = spec.count();
  const auto read = [this, kept, parameter, count](const TakeBytes& take) {
    constexpr int64_t kPiece = kHostPieceBytes / static_cast<int64_t>(sizeof(float));
    for (int64_t begin = 0; begin < count; begin += kPiece) {
      const ElementRange piece{begin, std::min(begin + kPiece, count)};
      const at::Tensor elements = exchange_->collect(parameter, kept, piece, /*root=*/0);
      if (elements.defined()) copy_to_bytes(elements, take);
    }
  };
  return {name, "F32", spec.shape, static_cast<uint64_t>(count) * sizeof(float), read};
}

std::vector<TensorSource> ParameterStore::sources_of(const std::vector<at::Tensor>& kept,
                                                     const std::string& suffix) const {
  std::vector<TensorSource> sources;
  for (size_t i = 0; i < kept.size(); ++i) sources.push_back(source_of(kept[i], i, specs_[i].name + suffix));
  return sources;
}

std::vector<TensorSource> ParameterStore::moment_sources() const {
  std::vector<TensorSource> sources;
  for (size_t i = 0; i < specs_.size(); ++i) {
    sources.push_back(source_of(exp_avg_[i], i, specs_[i].name + ".exp_avg"));
    sources.push_back(source_of(exp_avg_sq_[i], i, specs_[i].name + ".exp_avg_sq"));
  }
  return sources;
}

}  // namespace dtopp

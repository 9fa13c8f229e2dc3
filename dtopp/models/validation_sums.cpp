#include "dtopp/models/validation_sums.h"

namespace dtopp::models {
namespace {

constexpr int64_t kGroupAndLoss = 2;  // columns before those of the layers

}  // namespace

ValidationSums::ValidationSums(const Model& model, int64_t num_experts, std::vector<HeldOutSource> sources,
                               int64_t batch_size, const at::Device& device)
    : model_(model), num_experts_(num_experts), sources_(std::move(sources)) {
  for (size_t s = 0; s < sources_.size(); ++s) {
    const auto count = static_cast<int64_t>(sources_[s].samples);
    for (int64_t begin = 0; begin < count; begin += batch_size)
      batches_.push_back({s, sources_[s].first + static_cast<uint64_t>(begin),
                          std::min(batch_size, count - begin), samples_ + begin});
    samples_ += count;
    activations_.emplace_back(model.num_routed_layers);
  }
  const auto options = at::device(device).dtype(at::kDouble);
  losses_B_ = at::zeros({num_batches()}, options);
  const int64_t listed = model.validation_groups.empty() ? 0 : samples_;
  samples_SN_ = at::zeros({listed, kGroupAndLoss + model.num_routed_layers}, options);
}

void ValidationSums::add(int64_t batch, const Batch& data, const BatchLosses& losses) {
  const BatchPlace& place = batches_.at(batch);
  losses_B_[batch] = losses.value(model_.validation_loss).to(at::kDouble) * place.size;
  activations_[place.source].add(losses.activations);
  if (model_.validation_groups.empty()) return;
  if (!losses.samples) throw std::invalid_argument("ValidationSums: the batch has no losses per sample");
  const Tensor rows_BN = samples_SN_.narrow(0, place.row, place.size);
  rows_BN.select(1, 0).copy_(data.tensor("group"));
  rows_BN.select(1, 1).copy_(losses.samples->loss_B);
  if (model_.num_routed_layers > 0)
    rows_BN.narrow(1, kGroupAndLoss, model_.num_routed_layers).copy_(losses.samples->num_assignments_BL);
}

ValidationResult ValidationSums::result(distributed::Collectives& ranks) const {
  std::vector<Tensor> parts = {losses_B_};
  for (const moe::ActivationStatistics& of_source : activations_)
    parts.push_back(of_source.to_vector(num_experts_, losses_B_.device()));
  parts.push_back(samples_SN_.view({-1}));
  const Tensor all = at::cat(parts);
  ranks.all_reduce_sum(all, "validation").wait();
  int64_t begin = 0;
  const auto next = [&](int64_t size) { return all.narrow(0, std::exchange(begin, begin + size), size); };
  const Tensor losses_B = next(num_batches());
  ValidationResult result;
  result.loss = losses_B.sum().item<double>() / static_cast<double>(samples_);
  result.activations = moe::ActivationStatistics(model_.num_routed_layers);
  int64_t batch = 0;
  for (size_t s = 0; s < sources_.size(); ++s) {
    const int64_t first_batch = batch;
    while (batch < num_batches() && batches_[batch].source == s) ++batch;
    const auto samples = static_cast<int64_t>(sources_[s].samples);
    ValidationSource one;
    one.name = sources_[s].name;
    one.loss = losses_B.narrow(0, first_batch, batch - first_batch).sum().item<double>() /
               static_cast<double>(samples);
    one.activations = moe::ActivationStatistics::from_vector(
        next(moe::ActivationStatistics::vector_size(model_.num_routed_layers, num_experts_)),
        model_.num_routed_layers, num_experts_, samples * model_.tokens_per_sample);
    result.activations.add(one.activations);
    if (!one.name.empty()) result.sources.push_back(std::move(one));
  }
  result.mixture_loss = mixture_loss(result.sources);
  result.groups = groups(next(samples_SN_.numel()).view(samples_SN_.sizes()).cpu());
  return result;
}

std::optional<double> ValidationSums::mixture_loss(const std::vector<ValidationSource>& results) const {
  double loss = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!sources_[i].mixture_share) return std::nullopt;
    // A source outside the mixture may have a loss that is not finite.
    if (*sources_[i].mixture_share > 0) loss += *sources_[i].mixture_share * results[i].loss;
  }
  return results.empty() ? std::nullopt : std::optional(loss);
}

std::vector<ValidationGroup> ValidationSums::groups(const Tensor& samples_SN) const {
  std::vector<ValidationGroup> groups;
  for (size_t g = 0; g < model_.validation_groups.size(); ++g) {
    const Tensor rows_SN = samples_SN.index({samples_SN.select(1, 0).eq(static_cast<double>(g))});
    if (rows_SN.size(0) == 0) continue;
    const Tensor mean_N = rows_SN.mean(0);
    ValidationGroup group{model_.validation_groups[g], mean_N[1].item<double>(), {}};
    for (int64_t layer = 0; layer < model_.num_routed_layers; ++layer)
      group.active_experts_L.push_back(mean_N[kGroupAndLoss + layer].item<double>() /
                                       static_cast<double>(model_.tokens_per_sample));
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace dtopp::models

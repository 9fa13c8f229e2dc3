#include "dtopp/models/validation_sums.h"

#include <stdexcept>

namespace dtopp::models {
namespace {

constexpr int64_t kGroupAndLoss = 2;  // columns before those of the layers

}  // namespace

ValidationSums::ValidationSums(const Model& model, int64_t num_experts, int64_t samples, int64_t batch_size,
                               const at::Device& device)
    : model_(model),
      num_experts_(num_experts),
      samples_(samples),
      batch_size_(batch_size),
      activations_(model.num_routed_layers) {
  const auto options = at::device(device).dtype(at::kDouble);
  losses_B_ = at::zeros({(samples + batch_size - 1) / batch_size}, options);
  const int64_t listed = model.validation_groups.empty() ? 0 : samples;
  samples_SN_ = at::zeros({listed, kGroupAndLoss + model.num_routed_layers}, options);
}

void ValidationSums::add(int64_t batch, const Batch& data, const BatchLosses& losses) {
  const int64_t size = size_of(batch);
  losses_B_[batch] = losses.value(model_.validation_loss).to(at::kDouble) * size;
  activations_.add(losses.activations);
  if (model_.validation_groups.empty()) return;
  if (!losses.samples) throw std::invalid_argument("ValidationSums: the batch has no losses per sample");
  const at::Tensor rows_BN = samples_SN_.narrow(0, first_sample(batch), size);
  rows_BN.select(1, 0).copy_(data.tensor("group"));
  rows_BN.select(1, 1).copy_(losses.samples->loss_B);
  if (model_.num_routed_layers > 0)
    rows_BN.narrow(1, kGroupAndLoss, model_.num_routed_layers).copy_(losses.samples->num_assignments_BL);
}

ValidationResult ValidationSums::result(distributed::Collectives& ranks) const {
  const at::Tensor counts = activations_.to_vector(num_experts_, losses_B_.device());
  const at::Tensor all = at::cat({losses_B_, counts, samples_SN_.view({-1})});
  ranks.all_reduce_sum(all, "validation").wait();
  ValidationResult result;
  result.loss = all.narrow(0, 0, num_batches()).sum().item<double>() / static_cast<double>(samples_);
  result.activations = moe::ActivationStatistics::from_vector(all.narrow(0, num_batches(), counts.numel()),
                                                              model_.num_routed_layers, num_experts_,
                                                              samples_ * model_.tokens_per_sample);
  const int64_t before = num_batches() + counts.numel();
  result.groups = groups(all.narrow(0, before, all.numel() - before).view(samples_SN_.sizes()).cpu());
  return result;
}

std::vector<ValidationGroup> ValidationSums::groups(const at::Tensor& samples_SN) const {
  std::vector<ValidationGroup> groups;
  for (size_t g = 0; g < model_.validation_groups.size(); ++g) {
    const at::Tensor rows_SN = samples_SN.index({samples_SN.select(1, 0).eq(static_cast<double>(g))});
    if (rows_SN.size(0) == 0) continue;
    const at::Tensor mean_N = rows_SN.mean(0);
    ValidationGroup group{model_.validation_groups[g], mean_N[1].item<double>(), {}};
    for (int64_t layer = 0; layer < model_.num_routed_layers; ++layer)
      group.active_experts_L.push_back(mean_N[kGroupAndLoss + layer].item<double>() /
                                       static_cast<double>(model_.tokens_per_sample));
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace dtopp::models

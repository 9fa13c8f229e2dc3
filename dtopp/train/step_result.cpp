#include "dtopp/train/step_result.h"

namespace dtopp {
namespace {

// Gives out a list of numbers from its beginning.
class Numbers {
 public:
  explicit Numbers(const at::Tensor& list) : next_(list.const_data_ptr<double>()) {}

  double one() { return *next_++; }
  std::vector<double> several(int64_t count) {
    next_ += count;
    return {next_ - count, next_};
  }

 private:
  const double* next_;
};

}  // namespace

void LossSums::add(const at::Tensor& total, const std::vector<std::pair<std::string, at::Tensor>>& terms) {
  std::vector<at::Tensor> values = {total};
  for (const auto& [name, value] : terms) values.push_back(value);
  if (micro_batches_ == 0) {
    sums_ = at::zeros({static_cast<int64_t>(values.size())}, total.options().dtype(at::kDouble));
    for (const auto& [name, value] : terms) names_.push_back(name);
  }
  sums_ += at::stack(values);
  micro_batches_ += 1;
}

// Two copies, of floating and of whole numbers: each costs the device as much as a hundred times its size.
StepInFlight::StepInFlight(StepResult known, const StepNumbers& numbers, double begun)
    : known_(std::move(known)),
      loss_names_(numbers.losses.names()),
      micro_batches_(numbers.losses.micro_batches()),
      routed_layers_(numbers.most_pairs_L.numel()),
      controllers_(numbers.threshold_C.numel()),
      scales_(numbers.scale_L.numel()),
      tokens_(numbers.activations.tokens()),
      begun_(begun) {
  const auto list = [](const at::Tensor& value) { return value.to(at::kDouble).view({-1}); };
  std::vector<at::Tensor> lists = {
      at::cat({numbers.losses.sums(), list(numbers.grad_norm), list(numbers.applied), list(numbers.halted),
               list(numbers.most_pairs_L), numbers.threshold_C, list(numbers.scale_L),
               numbers.new_threshold_C, numbers.new_error_sum_C})};
  if (tokens_ > 0) {
    num_experts_ = numbers.activations.expert_counts().size(1);
    lists.push_back(at::cat({numbers.activations.expert_counts(), numbers.activations.histogram()}, 1));
  }
  copy_ = HostCopy(lists);
}

StepInFlight::Arrival StepInFlight::read() const {
  const std::vector<at::Tensor>& lists = copy_.get();
  Numbers numbers(lists[0]);
  Arrival arrival{known_, {}, {}};
  StepResult& result = arrival.result;
  const auto count = static_cast<double>(micro_batches_);
  result.loss = numbers.one() / count;
  for (const std::string& name : loss_names_) result.losses.emplace_back(name, numbers.one() / count);
  result.grad_norm = numbers.one();
  const bool applied = numbers.one() != 0;
  result.halted = numbers.one() != 0;
  result.skipped = !applied && !result.halted;
  for (const double most : numbers.several(routed_layers_))
    result.most_pairs_L.push_back(static_cast<int64_t>(most));
  const std::vector<double> thresholds = numbers.several(controllers_);
  result.scales = numbers.several(scales_);
  arrival.thresholds = numbers.several(controllers_);
  arrival.error_sums = numbers.several(controllers_);
  if (tokens_ > 0) {
    const at::Tensor& counts = lists[1];
    result.activations = ActivationStatistics(counts.narrow(1, 0, num_experts_),
                                              counts.narrow(1, num_experts_, num_experts_ + 1), tokens_);
  }
  // One threshold may serve every layer.
  for (int64_t layer = 0; layer < result.activations.num_layers(); ++layer)
    result.thresholds.push_back(thresholds[controllers_ > 1 ? static_cast<size_t>(layer) : 0]);
  return arrival;
}

}  // namespace dtopp

#include "dtopp/train/step_numbers.h"

#include "dtopp/ops/route/cumulative_prob_bins.h"

namespace dtopp {
namespace {

constexpr int64_t kFlags = 2;  // overflowed, stop_requested

// One rank's numbers, with zeros at the positions of other ranks. The sum over ranks then holds every rank's
// numbers.
class Contribution {
 public:
  explicit Contribution(const at::TensorOptions& options) : options_(options) {}

  void add(const at::Tensor& numbers) { lists_.push_back(numbers.to(at::kDouble).reshape({-1})); }
  void add(bool flag) { add(at::full({}, flag ? 1.0 : 0.0, options_)); }
  // Adds `numbers` as row `row` of `rows` rows.
  void add_row(const at::Tensor& numbers, int64_t row, int64_t rows) {
    add(at::zeros({row * numbers.numel()}, options_));
    add(numbers);
    add(at::zeros({(rows - row - 1) * numbers.numel()}, options_));
  }

  at::Tensor sum(Collectives& ranks) const {
    const at::Tensor values = at::cat(lists_);
    ranks.all_reduce_sum(values, "step").wait();
    return values;
  }

 private:
  at::TensorOptions options_;
  std::vector<at::Tensor> lists_;
};

}  // namespace

void StepSums::add_losses(int64_t micro_batch, const at::Tensor& total,
                          const std::vector<std::pair<std::string, at::Tensor>>& terms) {
  std::vector<at::Tensor> values = {total};
  for (const auto& [name, value] : terms) values.push_back(value);
  losses.emplace_back(micro_batch, at::stack(values).to(at::kDouble));
}

void StepSums::add_prob_histogram(const at::Tensor& of_micro_batch_CM) {
  if (!of_micro_batch_CM.defined()) return;
  prob_histogram_CM = prob_histogram_CM.defined() ? prob_histogram_CM + of_micro_batch_CM : of_micro_batch_CM;
}

StepNumbers::StepNumbers(StepShape shape, const StepSums& sums, const at::Tensor& squared_norms,
                         const at::Tensor& overflowed, Collectives& ranks)
    : shape_(std::move(shape)) {
  const auto options = squared_norms.options();
  const int64_t M = shape_.micro_batches, L = shape_.routed_layers, E = shape_.num_experts;
  const at::Tensor losses_MN = at::zeros({M, shape_.num_losses()}, options);
  for (const auto& [micro_batch, losses] : sums.losses) losses_MN[micro_batch].copy_(losses);
  Contribution mine(options);
  mine.add(losses_MN);
  mine.add(squared_norms);
  mine.add(overflowed);
  mine.add(sums.stop_requested);
  mine.add_row(sums.max_assignments_L, ranks.rank(), ranks.size());
  if (L > 0) mine.add(sums.activations.to_vector(E, options.device()));
  const at::Tensor& prob_histogram_CM = sums.prob_histogram_CM;
  mine.add(prob_histogram_CM.defined() ? prob_histogram_CM
                                       : at::zeros({shape_.histogram_rows * kCumulativeProbBins}, options));
  const at::Tensor all = mine.sum(ranks);

  int64_t at = 0;
  const auto next = [&](int64_t size) { return all.narrow(0, std::exchange(at, at + size), size); };
  std::vector<at::Tensor> lists = {next(losses_MN.numel()).view({M, -1}).sum(0),
                                   next(squared_norms.numel()).sum().view({1}), next(kFlags)};
  if (L > 0) {
    lists.push_back(next(ranks.size() * L).view({-1, L}).amax(0));
    lists.push_back(next(ActivationStatistics::vector_size(L, E)));
  }
  if (shape_.histogram_rows > 0)
    prob_histogram_CM_ = next(shape_.histogram_rows * kCumulativeProbBins).view({-1, kCumulativeProbBins});
  values_ = at::cat(lists);
}

int64_t StepNumbers::size(const StepShape& shape) {
  return shape.num_losses() + 1 + kFlags + shape.routed_layers +
         ActivationStatistics::vector_size(shape.routed_layers, shape.num_experts);
}

ActivationStatistics StepNumbers::activations() const {
  const int64_t L = shape_.routed_layers, E = shape_.num_experts, begin = norm_at() + 1 + kFlags + L;
  return ActivationStatistics::from_vector(part(begin, ActivationStatistics::vector_size(L, E)), L, E,
                                           shape_.tokens);
}

}  // namespace dtopp

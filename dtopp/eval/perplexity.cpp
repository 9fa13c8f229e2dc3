#include "dtopp/eval/perplexity.h"

#include <cmath>

#include "dtopp/base/errors.h"
#include "dtopp/ops/host_copy.h"
#include "dtopp/ops/linear_cross_entropy.h"

namespace dtopp {

double Perplexity::perplexity() const { return std::exp(nll); }

Perplexity measure_perplexity(const InferenceModel& model, uint64_t num_ids,
                              const std::function<void(uint64_t, std::span<int64_t>)>& read,
                              int64_t batch_size, const std::function<void(uint64_t)>& progress,
                              const ObserveWindows& observe) {
  if (num_ids < 2) throw DataError("the text holds no token to predict");
  const at::NoGradGuard no_grad;
  const auto stride = static_cast<uint64_t>(model.config.model.sequence_length);
  const uint64_t full_windows = (num_ids - 1) / stride;
  Perplexity result;
  result.activations = ActivationStatistics(static_cast<int64_t>(model.routing.threshold.size()));
  double sum = 0;
  const auto add = [&](uint64_t offset, int64_t count, uint64_t length) {
    const auto width = static_cast<int64_t>(length);
    const at::Tensor read_windows = at::empty({count, width + 1}, at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      read(offset + static_cast<uint64_t>(i) * stride,
           std::span(read_windows.mutable_data_ptr<int64_t>() + i * (width + 1), length + 1));
    }
    const at::Tensor windows = to_device(read_windows, model.device());
    const TextWindows inputs{windows.narrow(1, 0, width), offset, stride};
    const HiddenStates states = hidden_states(model.model, inputs.ids_BL, model.routing);
    const auto [log_probs_T, greedy_T] =
        token_log_probs(states.x_TD, model.model.head_VD(), windows.narrow(1, 1, width).reshape({-1}));
    sum -= log_probs_T.to(at::kDouble).sum().item<double>();
    result.tokens += count * width;
    result.activations.add(states.routing);
    if (observe) observe(inputs, states);
    if (progress) progress(static_cast<uint64_t>(result.tokens));
  };
  for (uint64_t window = 0; window < full_windows;) {
    const auto count =
        static_cast<int64_t>(std::min<uint64_t>(static_cast<uint64_t>(batch_size), full_windows - window));
    add(window * stride, count, stride);
    window += static_cast<uint64_t>(count);
  }
  const uint64_t rest = (num_ids - 1) % stride;
  if (rest > 0) add(full_windows * stride, 1, rest);
  result.nll = sum / static_cast<double>(result.tokens);
  return result;
}

}  // namespace dtopp

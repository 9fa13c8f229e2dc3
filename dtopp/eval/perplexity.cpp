#include "dtopp/eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dtopp/base/errors.h"
#include "dtopp/eval/routing_file.h"
#include "dtopp/moe/routers/replay.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"

namespace dtopp::eval {

double Perplexity::perplexity() const { return std::exp(nll); }

namespace {

// The windows of one batch. The first begins at id `offset`; each predicts `length` ids.
struct WindowBatch {
  uint64_t offset;
  int64_t count, length;
};

std::vector<WindowBatch> batches_of(uint64_t num_ids, int64_t length, int64_t batch_size) {
  const auto stride = static_cast<uint64_t>(length);
  const auto full = static_cast<int64_t>((num_ids - 1) / stride);
  const auto rest = static_cast<int64_t>((num_ids - 1) % stride);
  std::vector<WindowBatch> batches;
  for (int64_t window = 0; window < full; window += batch_size)
    batches.push_back({static_cast<uint64_t>(window) * stride, std::min(batch_size, full - window), length});
  if (rest > 0) batches.push_back({static_cast<uint64_t>(full) * stride, 1, rest});
  return batches;
}

}  // namespace

Perplexity measure_perplexity(const inference::InferenceModel& model, const EvaluationText& text,
                              int64_t batch_size, distributed::Collectives& ranks, inference::Watch& watch,
                              WindowObserver* observer, const RoutingReplay* replay) {
  const uint64_t num_ids = text.size();
  if (num_ids < 2) throw DataError("the text has no token to predict; it needs at least two tokens");
  const at::NoGradGuard no_grad;
  const auto stride = static_cast<uint64_t>(model.config.model.sequence_length);
  const std::vector<WindowBatch> batches =
      batches_of(num_ids, model.config.model.sequence_length, batch_size);
  const auto num_batches = static_cast<int64_t>(batches.size());
  const int64_t L = model.routing.router ? model.routing.router->num_layers() : 0;
  const int64_t E = model.config.model.num_experts;
  moe::ActivationStatistics activations(L);
  const at::Tensor sums_B = at::zeros({num_batches}, at::kDouble);  // sum of log probabilities per batch
  std::vector<uint64_t> ends;
  for (const WindowBatch& batch : batches)
    ends.push_back(batch.offset + static_cast<uint64_t>(batch.count * batch.length));
  inference::SharedBatches shared(std::move(ends), ranks, watch);
  while (const auto b = shared.next()) {
    const auto [offset, count, length] = batches[*b];
    const at::Tensor read_windows = at::empty({count, length + 1}, at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      text.read(offset + static_cast<uint64_t>(i) * stride,
                std::span(read_windows.mutable_data_ptr<int64_t>() + i * (length + 1),
                          static_cast<size_t>(length) + 1));
    }
    const at::Tensor windows = ops::to_device(read_windows, model.device());
    const TextWindows inputs{windows.narrow(1, 0, length), offset, stride};
    moe::Routing routing = model.routing;
    if (replay != nullptr)
      routing.router =
          std::make_shared<moe::ReplayRouter>(model.config, replay->maps(offset, count * length));
    const models::HiddenStates states = models::hidden_states(model.model, inputs.ids_BL, routing);
    const auto [log_probs_T, greedy_T] =
        ops::token_log_probs(states.x_TD, model.model.head_VD(), windows.narrow(1, 1, length).reshape({-1}));
    sums_B[static_cast<int64_t>(*b)] = log_probs_T.to(at::kDouble).sum();
    activations.add(states.routing);
    if (observer != nullptr) observer->add(inputs, states);
  }
  if (shared.stopped()) throw Stopped("stopped before the end of the text; no result is kept");

  const at::Tensor values = at::cat({sums_B, activations.to_vector(E, model.device()).cpu()});
  ranks.all_reduce_sum(values, "perplexity").wait();
  Perplexity result;
  result.tokens = static_cast<int64_t>(num_ids) - 1;
  double sum = 0;
  for (int64_t b = 0; b < num_batches; ++b) sum -= values[b].item<double>();
  result.nll = sum / static_cast<double>(result.tokens);
  result.activations = moe::ActivationStatistics::from_vector(
      values.narrow(0, num_batches, values.numel() - num_batches), L, E, result.tokens);
  return result;
}

}  // namespace dtopp::eval

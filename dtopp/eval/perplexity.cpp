#include "dtopp/eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "dtopp/base/errors.h"
#include "dtopp/eval/routing_file.h"
#include "dtopp/moe/routers/replay.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"

namespace dtopp::eval {

double Perplexity::perplexity() const { return std::exp(nll); }

double Perplexity::bits_per_byte(int64_t bytes) const {
  return nll / std::numbers::ln2 * static_cast<double>(tokens) / static_cast<double>(bytes);
}

namespace {

// Windows of equal length. Each begins at one of the offsets and predicts `length` ids.
struct WindowBatch {
  std::vector<uint64_t> offsets;
  int64_t length;
};

// Calls body(begin, ids) for parts of the text, in order.
template <typename Body>
void for_parts(const EvaluationText& text, const Body& body) {
  constexpr uint64_t kPart = 1 << 16;
  std::vector<int64_t> ids;
  for (uint64_t begin = 0; begin < text.size(); begin += kPart) {
    ids.resize(std::min(kPart, text.size() - begin));
    text.read(begin, ids);
    body(begin, ids);
  }
}

// Returns the offsets at which windows begin anew, and the offset of the last id.
std::vector<uint64_t> document_bounds(const EvaluationText& text, std::optional<int64_t> end_of_text) {
  std::vector<uint64_t> bounds{0};
  if (end_of_text) {
    for_parts(text, [&](uint64_t begin, const std::vector<int64_t>& ids) {
      for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] == *end_of_text && begin + i > 0) bounds.push_back(begin + i);
    });
  }
  if (bounds.back() + 1 < text.size()) bounds.push_back(text.size() - 1);
  return bounds;
}

std::vector<WindowBatch> batches_of(const std::vector<uint64_t>& bounds, int64_t length, int64_t batch_size) {
  std::vector<WindowBatch> batches;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    for (uint64_t offset = bounds[i]; offset < bounds[i + 1]; offset += static_cast<uint64_t>(length)) {
      const int64_t predicted = std::min(length, static_cast<int64_t>(bounds[i + 1] - offset));
      const bool fits = !batches.empty() && batches.back().length == predicted &&
                        static_cast<int64_t>(batches.back().offsets.size()) < batch_size;
      if (!fits) batches.push_back({{}, predicted});
      batches.back().offsets.push_back(offset);
    }
  }
  return batches;
}

}  // namespace

Perplexity measure_perplexity(const inference::InferenceModel& model, const EvaluationText& text,
                              int64_t batch_size, distributed::Collectives& ranks, inference::Watch& watch,
                              WindowObserver* observer, const RoutingReplay* replay,
                              std::optional<int64_t> end_of_text) {
  const uint64_t num_ids = text.size();
  if (num_ids < 2) throw DataError("the text has no token to predict; it needs at least two tokens");
  const at::NoGradGuard no_grad;
  const auto stride = static_cast<uint64_t>(model.config.model.sequence_length);
  const std::vector<WindowBatch> batches =
      batches_of(document_bounds(text, end_of_text), model.config.model.sequence_length, batch_size);
  const auto num_batches = static_cast<int64_t>(batches.size());
  const int64_t L = model.routing.router ? model.routing.router->num_layers() : 0;
  const int64_t E = model.config.model.num_experts;
  moe::ActivationStatistics activations(L);
  const at::Tensor sums_B = at::zeros({num_batches}, at::kDouble);  // sum of log probabilities per batch
  std::vector<uint64_t> ends;
  for (const WindowBatch& batch : batches)
    ends.push_back(batch.offsets.back() + static_cast<uint64_t>(batch.length));
  inference::SharedBatches shared(std::move(ends), ranks, watch);
  while (const auto b = shared.next()) {
    const auto& [offsets, length] = batches[*b];
    const auto count = static_cast<int64_t>(offsets.size());
    const at::Tensor read_windows = at::empty({count, length + 1}, at::kLong);
    for (int64_t i = 0; i < count; ++i) {
      text.read(offsets[static_cast<size_t>(i)],
                std::span(read_windows.mutable_data_ptr<int64_t>() + i * (length + 1),
                          static_cast<size_t>(length) + 1));
    }
    const at::Tensor windows = ops::to_device(read_windows, model.device());
    const TextWindows inputs{windows.narrow(1, 0, length), offsets.front(), stride};
    moe::Routing routing = model.routing;
    if (replay != nullptr)
      routing.router =
          std::make_shared<moe::ReplayRouter>(model.config, replay->maps(offsets.front(), count * length));
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

int64_t predicted_bytes(const EvaluationText& text, const data::Tokenizer& tokenizer) {
  std::vector<int64_t> bytes_V;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id)
    bytes_V.push_back(tokenizer.text_bytes(static_cast<int32_t>(id)));
  int64_t bytes = 0;
  for_parts(text, [&](uint64_t begin, const std::vector<int64_t>& ids) {
    for (size_t i = begin == 0 ? 1 : 0; i < ids.size(); ++i)
      if (ids[i] < tokenizer.vocab_size()) bytes += bytes_V[static_cast<size_t>(ids[i])];
  });
  return bytes;
}

}  // namespace dtopp::eval

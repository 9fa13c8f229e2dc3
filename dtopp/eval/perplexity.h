// Perplexity of a text under a language model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "dtopp/inference/inference_model.h"
#include "dtopp/inference/shared_batches.h"

namespace dtopp {

struct Perplexity {
  double nll = 0;      // mean over all predicted tokens, nats
  int64_t tokens = 0;  // predicted tokens
  double perplexity() const;
  ActivationStatistics activations;
};

// Some windows of a stream of ids: the first begins at id `offset`, each other `stride` after the one before.
struct TextWindows {
  at::Tensor ids_BL;  // what the model reads
  uint64_t offset, stride;
};

using ObserveWindows = std::function<void(const TextWindows&, const HiddenStates&)>;

// The experts that the tokens of windows are to take: bool [T, E] of a layer (RoutingInputs::selection).
using ReplayWindows =
    std::function<std::function<at::Tensor(size_t layer, int64_t num_tokens)>(const TextWindows&)>;

// One stream of ids in windows of sequence_length + 1, stride sequence_length; a shorter last window is kept.
// Batches of `batch_size` windows, the last one by itself, are what the ranks share out; the result is every
// rank's. `hooks` counts tokens; `observe`, where given, is called with each batch that is this rank's and
// the model's states for it; `replay`, where given, chooses the experts. DataError when there is nothing to
// predict (fewer than two ids); Stopped.
Perplexity measure_perplexity(const InferenceModel& model, uint64_t num_ids,
                              const std::function<void(uint64_t offset, std::span<int64_t>)>& read,
                              int64_t batch_size, Collectives& ranks, const BatchHooks& hooks,
                              const ObserveWindows& observe = {}, const ReplayWindows& replay = {});

}  // namespace dtopp

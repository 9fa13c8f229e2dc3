// Measures the perplexity of a text under a language model.
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

// Consecutive windows of a stream of ids. The first begins at id `offset`; each next one begins `stride` ids
// later.
struct TextWindows {
  at::Tensor ids_BL;  // the model's input
  uint64_t offset, stride;
};

using ObserveWindows = std::function<void(const TextWindows&, const HiddenStates&)>;

// Returns, for some windows, the function that selects the experts of a layer: bool [T, E]
// (RoutingInputs::selection).
using ReplayWindows =
    std::function<std::function<at::Tensor(size_t layer, int64_t num_tokens)>(const TextWindows&)>;

// Measures a stream of ids in windows of sequence_length + 1 ids with stride sequence_length.
//
// A shorter last window is kept and forms a batch of its own. Batches of `batch_size` windows are distributed
// over the ranks. The progress of `hooks` counts tokens. `observe`, if set, receives each batch of this rank
// and the model's states for it. `replay`, if set, selects the experts.
//
// Returns:    the same result on every rank
// Throws:     DataError if there are fewer than two ids; Stopped if a stop is requested on any rank
// Collective: every rank of `ranks`, in the same order
Perplexity measure_perplexity(const InferenceModel& model, uint64_t num_ids,
                              const std::function<void(uint64_t offset, std::span<int64_t>)>& read,
                              int64_t batch_size, Collectives& ranks, const BatchHooks& hooks,
                              const ObserveWindows& observe = {}, const ReplayWindows& replay = {});

}  // namespace dtopp

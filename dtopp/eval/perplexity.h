// Measures the perplexity of a text under a language model.
#pragma once

#include <cstdint>
#include <optional>

#include "dtopp/eval/evaluation_text.h"
#include "dtopp/inference/inference_model.h"
#include "dtopp/inference/shared_batches.h"

namespace dtopp::eval {

struct Perplexity {
  double nll = 0;      // mean over all predicted tokens, nats
  int64_t tokens = 0;  // predicted tokens
  double perplexity() const;
  // Returns the sum of -log2 P over all predicted tokens, divided by `bytes`, the size of the text they
  // spell.
  double bits_per_byte(int64_t bytes) const;
  moe::ActivationStatistics activations;
};

// Consecutive windows of a stream of ids. The first begins at id `offset`; each next one begins `stride` ids
// later.
struct TextWindows {
  at::Tensor ids_BL;  // the model's input
  uint64_t offset, stride;
};

// Receives each batch of this rank and the model's states for it.
class WindowObserver {
 public:
  virtual ~WindowObserver() = default;
  virtual void add(const TextWindows& windows, const models::HiddenStates& states) = 0;
};

class RoutingReplay;  // routing_file.h

// Measures a text in windows of sequence_length + 1 ids with stride sequence_length.
//
// A shorter last window is kept and forms a batch of its own. With `end_of_text`, windows begin anew at each
// id that ends a document: every document is predicted on its own, from its first token on. Batches of
// `batch_size` windows are distributed over the ranks. The progress of the watch counts tokens. `replay`, if
// it is not null, selects the experts; neither it nor `observer` can be combined with `end_of_text`.
//
// Returns:    the same result on every rank
// Throws:     DataError if there are fewer than two ids; Stopped if a stop is requested on any rank
// Collective: every rank of `ranks`, in the same order
Perplexity measure_perplexity(const inference::InferenceModel& model, const EvaluationText& text,
                              int64_t batch_size, distributed::Collectives& ranks, inference::Watch& watch,
                              WindowObserver* observer = nullptr, const RoutingReplay* replay = nullptr,
                              std::optional<int64_t> end_of_text = {});

// Returns the size in bytes of the text that all ids but the first spell. Special tokens spell nothing.
int64_t predicted_bytes(const EvaluationText& text, const data::Tokenizer& tokenizer);

}  // namespace dtopp::eval

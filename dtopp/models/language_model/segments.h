// Runs the language model over sequences of different lengths without padding.
//
// All layers but attention treat the tokens of all segments as one list. A segment continues a cache
// (generation) or an earlier segment: the choices of a question continue its context, which is computed once.
// Example:
//
// tokens     [ context | choice 0 | choice 1 ]      choices 0 and 1 have parent 0
// attention  choice 1 attends to the context and to itself, not to choice 0
//
// With model.attend_across_documents: false, a token attends only to its own document, in the continued
// tokens and in the segment.
#pragma once

#include <span>
#include <vector>

#include "dtopp/models/language_model/language_model.h"

namespace dtopp {

// Keys and values of the previous tokens, one pair per layer.
class KeyValueCache {
 public:
  explicit KeyValueCache(int64_t num_layers) : k_LHK_(num_layers), v_LHK_(num_layers) {}

  int64_t length() const { return length_; }

 private:
  friend class SegmentAttention;

  std::vector<at::Tensor> k_LHK_, v_LHK_;  // allocated in advance; undefined while empty
  int64_t length_ = 0;
  int64_t document_begin_ = 0;  // position where the document of the next token begins
};

inline constexpr int64_t kNoParent = -1;

struct Segment {
  int64_t length = 0;              // tokens; they follow those of earlier segments
  KeyValueCache* cache = nullptr;  // continued and extended; may be null
  int64_t parent = kNoParent;      // index of an earlier segment without cache or parent
};

// Runs the model without gradients. tokens_T: int64, T the sum of the segments' lengths. Throws
// std::invalid_argument if the segments are inconsistent.
HiddenStates segment_states(const LanguageModel& model, const at::Tensor& tokens_T,
                            std::span<const Segment> segments, const Routing& inputs);

}  // namespace dtopp

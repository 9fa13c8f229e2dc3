// The model over sequences of different lengths side by side, none padded: everything but attention works on
// their tokens as one list. With model.attend_across_documents: false, a token sees its own document in what
// its segment continues and in the segment. A segment continues a cache (generation) or an earlier segment
// (the choices of a question continue its context, which is computed once).
#pragma once

#include <span>
#include <vector>

#include "dtopp/models/language_model/language_model.h"

namespace dtopp {

// Keys and values of the tokens so far, one pair a layer.
class KeyValueCache {
 public:
  explicit KeyValueCache(int64_t num_layers) : k_LHK_(num_layers), v_LHK_(num_layers) {}

  int64_t length() const { return length_; }

 private:
  friend class SegmentAttention;

  std::vector<at::Tensor> k_LHK_, v_LHK_;  // with room for more; undefined while empty
  int64_t length_ = 0;
  int64_t document_begin_ = 0;  // of the document that the next token belongs to
};

inline constexpr int64_t kNoParent = -1;

struct Segment {
  int64_t length = 0;              // tokens, after those of the segments before it
  KeyValueCache* cache = nullptr;  // continued and extended
  int64_t parent = kNoParent;      // the index of an earlier segment without cache or parent
};

// tokens_T int64, T the sum of the lengths. Nothing is differentiated. std::invalid_argument where segments
// do not fit together.
HiddenStates segment_states(const LanguageModel& model, const at::Tensor& tokens_T,
                            std::span<const Segment> segments, const RoutingInputs& inputs);

}  // namespace dtopp

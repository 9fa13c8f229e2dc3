// Implements multi-head self-attention for all model types.
//
//   q, k = rotate(norm(x W_q^T + b_q)), rotate(norm(x W_k^T + b_k));  v = x W_v^T + b_v
//   y = softmax(q k^T / sqrt(K) where the mask allows it) v W_o^T
//
// H = model.num_heads heads of queries share G = model.num_kv_heads() heads of keys and values, each of
// K = model.head_size() numbers. Head h of the queries uses head h / (H / G).
#pragma once

#include <variant>

#include "dtopp/models/model.h"
#include "dtopp/ops/attention/attention.h"

namespace dtopp::models {

// Attention of sequences of different lengths without padding.
//
// All layers but attention treat the tokens of all segments as one list. A segment continues a cache
// (generation) or an earlier segment: the choices of a question continue its context, which is computed once.
// Example:
//
// tokens     [ context | choice 0 | choice 1 ]      choices 0 and 1 have parent 0
// attention  choice 1 attends to the context and to itself, not to choice 0

struct QueryKeyValue {
  Tensor q_THK, k_TGK, v_TGK;  // H a multiple of G
};

inline constexpr int64_t kCacheBlock = 64;  // tokens; caches grow by whole blocks

// Keys and values of the previous tokens of a sequence, per layer.
class KeyValueCache {
 public:
  explicit KeyValueCache(int64_t num_layers) : layers_(num_layers) {}

  int64_t length() const { return length_; }
  // The position where the document of the next token begins.
  int64_t document_begin() const { return document_begin_; }

  struct Stored {  // whole blocks; undefined while empty
    Tensor k_GLK, v_GLK;
  };
  // Returns the memory of a layer with a capacity of `tokens` more, whose keys and values have the shape and
  // type of k_TGK and v_TGK after T. The caller writes them.
  const Stored& reserve(int64_t layer, int64_t tokens, const Tensor& k_TGK, const Tensor& v_TGK);
  // Call after reserve for all layers.
  void advance(int64_t tokens, int64_t document_begin);

 private:
  std::vector<Stored> layers_;
  int64_t length_ = 0;
  int64_t document_begin_ = 0;
};

inline constexpr int64_t kNoParent = -1;

struct Segment {
  int64_t length = 0;              // tokens; they follow those of earlier segments
  KeyValueCache* cache = nullptr;  // continued and extended; may be null
  int64_t parent = kNoParent;      // index of an earlier segment without cache or parent
};

// Lets every token attend to its segment's continued tokens and to the earlier tokens of its segment.
class SegmentMask {
 public:
  // `segments` must outlive the mask. A segment has a cache, a parent or neither, and no two share a cache.
  // tokens_T: int64, T the sum of the segments' lengths. end_of_text: a token attends only to its own
  // document, which ends with this id. window > 0: a token attends to itself and to window - 1 tokens before
  // it. Throws std::invalid_argument if the segments are inconsistent.
  SegmentMask(const Tensor& tokens_T, std::span<const Segment> segments, std::optional<int64_t> end_of_text,
              int64_t window);

  const Tensor& positions_T() const { return positions_T_; }
  // Returns [T, H, K] without gradients. Appends to the caches of a layer.
  Tensor attend(int64_t layer, const QueryKeyValue& qkv) const;
  // Call after attend for all layers.
  void extend_caches() const;

 private:
  void set_first_seen(const Tensor& tokens_T, std::optional<int64_t> end_of_text, int64_t window);
  int64_t prefix_length(const Segment& segment) const;
  ops::CachedSequence cached(size_t index, int64_t layer, const QueryKeyValue& qkv) const;
  Tensor attend_to(size_t first, size_t last, int64_t layer, const QueryKeyValue& all,
                   const QueryKeyValue& own) const;
  Tensor sibling_mask(size_t first, size_t last, const at::TensorOptions& options) const;
  Tensor seen_only(const Tensor& mask, int64_t begin, int64_t before) const;

  std::span<const Segment> segments_;
  std::vector<int64_t> begin_;
  Tensor positions_T_;
  std::vector<int64_t> document_begin_;  // per segment: where the document of its next token begins
  Tensor first_seen_T_;                  // the first position that each token sees; undefined: all see 0
  std::vector<bool> hides_;              // per segment: some token does not see 0; empty: none
};

struct AttentionWeights {
  Tensor q, k, v, o;              // [H K, D], [G K, D], [G K, D], [D, H K]
  Tensor q_bias, k_bias, v_bias;  // [H K], [G K], [G K]; undefined without model.qkv_bias
  Tensor q_norm, k_norm;          // [H K], [G K], or [K] per head; undefined without QK norm
};

// Looks up the parameters of ParameterList::attention. prefix: "model.layers.3.self_attn."
AttentionWeights attention_weights(const config::ModelConfig& model, const std::string& prefix,
                                   const ParameterLookup& parameter);

// cos and sin of position * base^(-2 i / K), f32. The two halves of K are equal. Undefined: no rotation.
struct RotaryTable {
  Tensor cos_TK, sin_TK;
};
// positions_T: int64.
RotaryTable rotary_table(const Tensor& positions_T, const config::ModelConfig& model);

// The tokens that each token attends to. The tokens of a batch are concatenated samples.
struct SampleMask {  // all tokens of its sample, or if causal, itself and the earlier ones
  int64_t length;    // tokens per sample
  bool causal;
};
struct DocumentMask {  // itself and the earlier tokens of its document
  Tensor offsets;      // ops/attention/attention.h
  int64_t longest;
};
struct BiasMask {    // its sample, where the bias is not -infinity
  Tensor bias_B1LL;  // added to the scores; B may be 1
};
using AttentionMask = std::variant<SampleMask, DocumentMask, BiasMask, SegmentMask*>;

// The causal mask of `samples` x `length` tokens that also hides tokens `window` or more before a token, and
// other documents if `offsets` is defined (DocumentMask).
BiasMask window_mask(int64_t samples, int64_t length, int64_t window, const Tensor& offsets,
                     const at::TensorOptions& options);

// Shapes:        x_TD [T, D] -> [T, D]
// Preconditions: `rotary` has a row per token; it is defined if the model has QK norm. `layer` selects the
//                layer of the caches of a SegmentMask.
Tensor attention(const Tensor& x_TD, const AttentionWeights& weights, const config::ModelConfig& model,
                 const RotaryTable& rotary, const AttentionMask& mask, int64_t layer);

}  // namespace dtopp::models

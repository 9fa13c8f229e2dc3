#include "dtopp/models/language_model/segments.h"

#include <numeric>
#include <stdexcept>

#include "dtopp/ops/core/host_copy.h"

namespace dtopp {
namespace {

constexpr int64_t kSmallestCache = 64;  // tokens

// [tokens, H, K] to SDPA's [1, H, tokens, K].
at::Tensor by_head(const at::Tensor& x_LHK) { return x_LHK.transpose(0, 1).unsqueeze(0); }

at::Tensor attend(const at::Tensor& q_LHK, const at::Tensor& k_LHK, const at::Tensor& v_LHK,
                  const std::optional<at::Tensor>& mask, bool causal) {
  return at::scaled_dot_product_attention(by_head(q_LHK), by_head(k_LHK), by_head(v_LHK), mask, 0.0, causal)
      .squeeze(0)
      .transpose(0, 1);
}

}  // namespace

// Attention of every segment over its continued tokens and itself.
class SegmentAttention {
 public:
  SegmentAttention(const LanguageModel& model, const at::Tensor& tokens_T, std::span<const Segment> segments)
      : segments_(segments) {
    int64_t begin = 0;
    for (size_t i = 0; i < segments.size(); ++i) {
      const Segment& segment = segments[i];
      const bool known = segment.parent < static_cast<int64_t>(i);
      if (!known || (segment.parent != kNoParent && (segment.cache != nullptr || has_prefix(segment.parent))))
        throw std::invalid_argument(
            "segment_states: a parent must be an earlier segment without cache or parent");
      begin_.push_back(begin);
      begin += segment.length;
    }
    begin_.push_back(begin);
    if (tokens_T.dim() != 1 || tokens_T.size(0) != begin)
      throw std::invalid_argument("segments of " + std::to_string(begin) +
                                  " tokens; number of tokens given: " + std::to_string(tokens_T.numel()));
    set_positions(tokens_T.device());
    if (!model.config.attend_across_documents) find_documents(model, tokens_T.cpu());
  }

  const at::Tensor& positions_T() const { return positions_T_; }

  at::Tensor operator()(size_t layer, const QueryKeyValue& qkv) {
    at::Tensor mixed_THK = at::empty_like(qkv.q_THK);
    for (size_t i = 0; i < segments_.size();) {
      const size_t last = segments_[i].parent == kNoParent ? i + 1 : end_of_siblings(i);
      const int64_t begin = begin_[i], length = begin_[last] - begin;
      const QueryKeyValue own{qkv.q_THK.narrow(0, begin, length), qkv.k_THK.narrow(0, begin, length),
                              qkv.v_THK.narrow(0, begin, length)};
      at::Tensor out = mixed_THK.narrow(0, begin, length);
      if (length > 0) out.copy_(attend_to(i, last, layer, qkv, own));
      i = last;
    }
    return mixed_THK;
  }

  void extend_caches() const {
    for (size_t i = 0; i < segments_.size(); ++i) {
      KeyValueCache* const cache = segments_[i].cache;
      if (cache == nullptr) continue;
      cache->length_ += segments_[i].length;
      if (!document_begin_.empty()) cache->document_begin_ = document_begin_[i];
    }
  }

 private:
  void set_positions(const at::Device& device) {
    const at::Tensor positions_T = at::empty({begin_.back()}, at::kLong);
    auto* position = positions_T.mutable_data_ptr<int64_t>();
    for (size_t i = 0; i < segments_.size(); ++i) {
      std::iota(position + begin_[i], position + begin_[i + 1], prefix_length(segments_[i]));
    }
    positions_T_ = to_device(positions_T, device);
  }

  // Finds the position where each token's document begins. Positions include the continued tokens.
  void find_documents(const LanguageModel& model, const at::Tensor& tokens_T) {
    if (!model.end_of_text)
      throw std::invalid_argument("segment_states: model.attend_across_documents: false needs end_of_text");
    const at::Tensor first_seen_T = at::empty_like(tokens_T);
    const auto* token = tokens_T.const_data_ptr<int64_t>();
    auto* first_seen = first_seen_T.mutable_data_ptr<int64_t>();
    for (size_t i = 0; i < segments_.size(); ++i) {
      const Segment& segment = segments_[i];
      int64_t begin = 0;
      if (segment.parent != kNoParent) begin = document_begin_[segment.parent];
      if (segment.cache != nullptr) begin = segment.cache->document_begin_;
      int64_t position = prefix_length(segment);
      for (int64_t t = begin_[i]; t < begin_[i + 1]; ++t) {
        first_seen[t] = begin;
        ++position;
        if (token[t] == *model.end_of_text) begin = position;
      }
      document_begin_.push_back(begin);
    }
    if (first_seen_T.any().item<bool>()) first_seen_T_ = to_device(first_seen_T, positions_T_.device());
  }

  // Removes other documents from the mask of tokens from `begin` on. Its keys are `before` continued tokens
  // and the tokens themselves.
  at::Tensor in_document(const at::Tensor& mask, int64_t begin, int64_t before) const {
    if (!first_seen_T_.defined()) return mask;
    const at::Tensor own = positions_T_.narrow(0, begin, mask.size(0));
    const at::Tensor keys = at::cat({at::arange(before, own.options()), own});
    const at::Tensor first_seen = first_seen_T_.narrow(0, begin, mask.size(0));
    return mask.logical_and(keys.unsqueeze(0).ge(first_seen.unsqueeze(1)));
  }

  bool has_prefix(int64_t index) const {
    return segments_[index].cache != nullptr || segments_[index].parent != kNoParent;
  }
  int64_t prefix_length(const Segment& segment) const {
    if (segment.parent != kNoParent) return segments_[segment.parent].length;
    return segment.cache != nullptr ? segment.cache->length() : 0;
  }
  size_t end_of_siblings(size_t first) const {
    size_t last = first;
    while (last < segments_.size() && segments_[last].parent == segments_[first].parent) ++last;
    return last;
  }

  at::Tensor attend_to(size_t first, size_t last, size_t layer, const QueryKeyValue& all,
                       const QueryKeyValue& own) const {
    const Segment& segment = segments_[first];
    if (segment.parent != kNoParent) {
      const int64_t begin = begin_[segment.parent], length = segments_[segment.parent].length;
      const at::Tensor k = at::cat({all.k_THK.narrow(0, begin, length), own.k_THK});
      const at::Tensor v = at::cat({all.v_THK.narrow(0, begin, length), own.v_THK});
      const at::Tensor mask = sibling_mask(first, last, own.q_THK.options());
      return attend(own.q_THK, k, v, in_document(mask, begin_[first], length), false);
    }
    if (segment.cache != nullptr) append(*segment.cache, layer, own);
    const int64_t before = prefix_length(segment), total = before + segment.length;
    const auto seen = [&] {
      const at::Tensor before_it =
          at::ones({segment.length, total}, own.q_THK.options().dtype(at::kBool)).tril(before);
      return in_document(before_it, begin_[first], before);
    };
    if (before == 0) {
      if (!first_seen_T_.defined()) return attend(own.q_THK, own.k_THK, own.v_THK, std::nullopt, true);
      return attend(own.q_THK, own.k_THK, own.v_THK, seen(), false);
    }
    std::optional<at::Tensor> mask;
    if (segment.length > 1 || first_seen_T_.defined()) mask = seen();
    return attend(own.q_THK, segment.cache->k_LHK_[layer].narrow(0, 0, total),
                  segment.cache->v_LHK_[layer].narrow(0, 0, total), mask, false);
  }

  // Siblings attend to their parent and to their own earlier tokens.
  at::Tensor sibling_mask(size_t first, size_t last, const at::TensorOptions& options) const {
    const int64_t before = segments_[segments_[first].parent].length, total = begin_[last] - begin_[first];
    at::Tensor mask = at::zeros({total, before + total}, options.dtype(at::kBool));
    mask.narrow(1, 0, before).fill_(true);
    for (size_t i = first; i < last; ++i) {
      const int64_t begin = begin_[i] - begin_[first], length = segments_[i].length;
      mask.narrow(0, begin, length)
          .narrow(1, before + begin, length)
          .copy_(at::ones({length, length}, mask.options()).tril());
    }
    return mask;
  }

  static void append(KeyValueCache& cache, size_t layer, const QueryKeyValue& own) {
    put(cache.k_LHK_[layer], cache.length_, own.k_THK);
    put(cache.v_LHK_[layer], cache.length_, own.v_THK);
  }

  static void put(at::Tensor& stored_LHK, int64_t length, const at::Tensor& added_LHK) {
    const int64_t needed = length + added_LHK.size(0);
    const int64_t room = stored_LHK.defined() ? stored_LHK.size(0) : 0;
    if (needed > room) {
      const int64_t more = std::max({needed, 2 * room, kSmallestCache});
      const at::Tensor grown = at::empty({more, added_LHK.size(1), added_LHK.size(2)}, added_LHK.options());
      if (length > 0) grown.narrow(0, 0, length).copy_(stored_LHK.narrow(0, 0, length));
      stored_LHK = grown;
    }
    stored_LHK.narrow(0, length, added_LHK.size(0)).copy_(added_LHK);
  }

  std::span<const Segment> segments_;
  std::vector<int64_t> begin_;
  at::Tensor positions_T_;
  std::vector<int64_t> document_begin_;  // per segment: where the document of its next token begins
  at::Tensor first_seen_T_;  // the position where each token's document begins; undefined: all at 0
};

HiddenStates segment_states(const LanguageModel& model, const at::Tensor& tokens_T,
                            std::span<const Segment> segments, const Routing& inputs) {
  const at::NoGradGuard no_grad;
  SegmentAttention attention(model, tokens_T, segments);
  HiddenStates states =
      hidden_states(model, tokens_T, attention.positions_T(), inputs,
                    [&](size_t layer, const QueryKeyValue& qkv) { return attention(layer, qkv); });
  attention.extend_caches();
  return states;
}

}  // namespace dtopp

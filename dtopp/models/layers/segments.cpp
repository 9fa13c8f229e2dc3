#include "dtopp/models/layers/segments.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "dtopp/ops/attention/attention.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::models {
namespace {

// [tokens, H, K] to SDPA's [1, H, tokens, K].
at::Tensor by_head(const at::Tensor& x_LHK) { return x_LHK.transpose(0, 1).unsqueeze(0); }

at::Tensor sdpa(const at::Tensor& q_LHK, const at::Tensor& k_LGK, const at::Tensor& v_LGK,
                const std::optional<at::Tensor>& mask, bool causal) {
  const int64_t H = q_LHK.size(1);
  const at::Tensor q = by_head(q_LHK), k = by_head(repeat_heads(k_LGK, H)),
                   v = by_head(repeat_heads(v_LGK, H));
  const at::Tensor y =
      causal ? ops::self_attention(q, k, v, causal) : at::scaled_dot_product_attention(q, k, v, mask);
  return y.squeeze(0).transpose(0, 1);
}

// Grows a cache of `length` tokens to a capacity of `added` more, with the heads of like_TGK.
void grow(at::Tensor& stored_GLK, int64_t length, int64_t added, const at::Tensor& like_TGK) {
  const int64_t needed = length + added, capacity = stored_GLK.defined() ? stored_GLK.size(1) : 0;
  if (needed <= capacity) return;
  const int64_t blocks = (needed + kCacheBlock - 1) / kCacheBlock;
  const at::Tensor grown =
      at::empty({like_TGK.size(1), blocks * kCacheBlock, like_TGK.size(2)}, like_TGK.options());
  if (length > 0) grown.narrow(1, 0, length).copy_(stored_GLK.narrow(1, 0, length));
  stored_GLK = grown;
}

// Writes `added` behind the first `length` tokens and returns all.
at::Tensor put(const at::Tensor& stored_GLK, int64_t length, const at::Tensor& added_LGK) {
  stored_GLK.narrow(1, length, added_LGK.size(0)).copy_(added_LGK.transpose(0, 1));
  return stored_GLK.narrow(1, 0, length + added_LGK.size(0)).transpose(0, 1);
}

}  // namespace

at::Tensor repeat_heads(const at::Tensor& x_TGK, int64_t num_heads) {
  const int64_t G = x_TGK.size(1);
  return G == num_heads ? x_TGK : x_TGK.repeat_interleave(num_heads / G, 1);
}

KeyValueCache::Layer KeyValueCache::append(size_t layer, const at::Tensor& k_TGK, const at::Tensor& v_TGK) {
  const Stored& stored = reserve(layer, k_TGK.size(0), k_TGK, v_TGK);
  return {put(stored.k_GLK, length_, k_TGK), put(stored.v_GLK, length_, v_TGK)};
}

const KeyValueCache::Stored& KeyValueCache::reserve(size_t layer, int64_t tokens, const at::Tensor& k_TGK,
                                                    const at::Tensor& v_TGK) {
  Stored& stored = layers_.at(layer);
  grow(stored.k_GLK, length_, tokens, k_TGK);
  grow(stored.v_GLK, length_, tokens, v_TGK);
  return stored;
}

void KeyValueCache::advance(int64_t tokens, int64_t document_begin) {
  length_ += tokens;
  document_begin_ = document_begin;
}

SegmentMask::SegmentMask(const at::Tensor& tokens_T, std::span<const Segment> segments,
                         std::optional<int64_t> end_of_text, int64_t window)
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
  document_begin_.assign(segments.size(), 0);
  if (end_of_text || window > 0) set_first_seen(tokens_T.cpu(), end_of_text, window);
}

at::Tensor SegmentMask::attend(size_t layer, const QueryKeyValue& qkv) const {
  at::Tensor mixed_THK = at::empty(qkv.q_THK.sizes(), qkv.q_THK.options());
  std::vector<ops::CachedSequence> decoded;
  for (size_t i = 0; i < segments_.size();) {
    if (qkv.q_THK.is_cpu() && segments_[i].cache != nullptr && segments_[i].length == 1) {
      decoded.push_back(cached(i, layer, qkv));
      ++i;
      continue;
    }
    const size_t last = segments_[i].parent == kNoParent ? i + 1 : end_of_siblings(i);
    const int64_t begin = begin_[i], length = begin_[last] - begin;
    const QueryKeyValue own{qkv.q_THK.narrow(0, begin, length), qkv.k_TGK.narrow(0, begin, length),
                            qkv.v_TGK.narrow(0, begin, length)};
    at::Tensor out = mixed_THK.narrow(0, begin, length);
    if (length > 0) out.copy_(attend_to(i, last, layer, qkv, own));
    i = last;
  }
  if (!decoded.empty())
    ops::cached_attention(qkv.q_THK.contiguous(), qkv.k_TGK.contiguous(), qkv.v_TGK.contiguous(), decoded,
                          mixed_THK);
  return mixed_THK;
}

// The segment has one token.
ops::CachedSequence SegmentMask::cached(size_t index, size_t layer, const QueryKeyValue& qkv) const {
  const int64_t row = begin_[index];
  KeyValueCache& cache = *segments_[index].cache;
  const auto& [k_GLK, v_GLK] = cache.reserve(layer, 1, qkv.k_TGK, qkv.v_TGK);
  const bool hides = !hides_.empty() && hides_[index];
  const int64_t first = hides ? first_seen_T_.const_data_ptr<int64_t>()[row] : 0;
  return {row, k_GLK, v_GLK, first, cache.length()};
}

void SegmentMask::extend_caches() const {
  for (size_t i = 0; i < segments_.size(); ++i)
    if (segments_[i].cache != nullptr) segments_[i].cache->advance(segments_[i].length, document_begin_[i]);
}

void SegmentMask::set_positions(const at::Device& device) {
  const at::Tensor positions_T = at::empty({begin_.back()}, at::kLong);
  auto* position = positions_T.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < segments_.size(); ++i)
    std::iota(position + begin_[i], position + begin_[i + 1], prefix_length(segments_[i]));
  positions_T_ = ops::to_device(positions_T, device);
}

// Positions include the continued tokens.
void SegmentMask::set_first_seen(const at::Tensor& tokens_T, std::optional<int64_t> end_of_text,
                                 int64_t window) {
  const at::Tensor first_seen_T = at::zeros_like(tokens_T);
  const auto* token = tokens_T.const_data_ptr<int64_t>();
  auto* first_seen = first_seen_T.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    int64_t begin = 0;  // of the document
    if (segment.parent != kNoParent) begin = document_begin_[segment.parent];
    if (segment.cache != nullptr) begin = segment.cache->document_begin();
    int64_t position = prefix_length(segment);
    for (int64_t t = begin_[i]; t < begin_[i + 1]; ++t) {
      first_seen[t] = window > 0 ? std::max(begin, position - window + 1) : begin;
      ++position;
      if (end_of_text && token[t] == *end_of_text) begin = position;
    }
    document_begin_[i] = begin;
  }
  if (first_seen_T.any().item<bool>()) first_seen_T_ = ops::to_device(first_seen_T, positions_T_.device());
  for (size_t i = 0; i < segments_.size(); ++i)
    hides_.push_back(first_seen_T.slice(0, begin_[i], begin_[i + 1]).any().item<bool>());
}

// Removes the tokens before the first that each token sees from the mask of tokens from `begin` on. Its keys
// are `before` continued tokens and the tokens themselves.
at::Tensor SegmentMask::seen_only(const at::Tensor& mask, int64_t begin, int64_t before) const {
  if (!first_seen_T_.defined()) return mask;
  const at::Tensor own = positions_T_.narrow(0, begin, mask.size(0));
  const at::Tensor keys = at::cat({at::arange(before, own.options()), own});
  const at::Tensor first_seen = first_seen_T_.narrow(0, begin, mask.size(0));
  return mask.logical_and(keys.unsqueeze(0).ge(first_seen.unsqueeze(1)));
}

bool SegmentMask::has_prefix(int64_t index) const {
  return segments_[index].cache != nullptr || segments_[index].parent != kNoParent;
}

int64_t SegmentMask::prefix_length(const Segment& segment) const {
  if (segment.parent != kNoParent) return segments_[segment.parent].length;
  return segment.cache != nullptr ? segment.cache->length() : 0;
}

size_t SegmentMask::end_of_siblings(size_t first) const {
  size_t last = first;
  while (last < segments_.size() && segments_[last].parent == segments_[first].parent) ++last;
  return last;
}

at::Tensor SegmentMask::attend_to(size_t first, size_t last, size_t layer, const QueryKeyValue& all,
                                  const QueryKeyValue& own) const {
  const Segment& segment = segments_[first];
  if (segment.parent != kNoParent) {
    const int64_t begin = begin_[segment.parent], length = segments_[segment.parent].length;
    const at::Tensor k = at::cat({all.k_TGK.narrow(0, begin, length), own.k_TGK});
    const at::Tensor v = at::cat({all.v_TGK.narrow(0, begin, length), own.v_TGK});
    const at::Tensor mask = sibling_mask(first, last, own.q_THK.options());
    return sdpa(own.q_THK, k, v, seen_only(mask, begin_[first], length), false);
  }
  KeyValueCache::Layer keys{own.k_TGK, own.v_TGK};
  const int64_t before = prefix_length(segment), total = before + segment.length;
  if (segment.cache != nullptr) {
    const KeyValueCache::Layer stored = segment.cache->append(layer, own.k_TGK, own.v_TGK);
    if (before > 0) keys = stored;
  }
  const bool hides = !hides_.empty() && hides_[first];
  if (before == 0 && !hides) return sdpa(own.q_THK, keys.k_LGK, keys.v_LGK, std::nullopt, /*causal=*/true);
  std::optional<at::Tensor> mask;
  if (segment.length > 1 || hides) {
    const at::Tensor earlier =
        at::ones({segment.length, total}, own.q_THK.options().dtype(at::kBool)).tril(before);
    mask = hides ? seen_only(earlier, begin_[first], before) : earlier;
  }
  return sdpa(own.q_THK, keys.k_LGK, keys.v_LGK, mask, false);
}

// Siblings attend to their parent and to their own earlier tokens.
at::Tensor SegmentMask::sibling_mask(size_t first, size_t last, const at::TensorOptions& options) const {
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

}  // namespace dtopp::models

#include "dtopp/models/attention.h"

#include <limits>
#include <stdexcept>

#include <ATen/record_function.h>

#include "dtopp/ops/attention/norm_rotary.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::models {
namespace {

// [tokens, H, K] to SDPA's [1, H, tokens, K].
Tensor by_head(const Tensor& x_LHK) { return x_LHK.transpose(0, 1).unsqueeze(0); }

// Repeats each head of [T, G, K] for the num_heads / G heads of queries that share it.
Tensor repeat_heads(const Tensor& x_TGK, int64_t num_heads) {
  const int64_t G = x_TGK.size(1);
  return G == num_heads ? x_TGK : x_TGK.repeat_interleave(num_heads / G, 1);
}

Tensor sdpa(const Tensor& q_LHK, const Tensor& k_LGK, const Tensor& v_LGK, const std::optional<Tensor>& mask,
            bool causal) {
  const int64_t H = q_LHK.size(1);
  const Tensor q = by_head(q_LHK), k = by_head(repeat_heads(k_LGK, H)), v = by_head(repeat_heads(v_LGK, H));
  const Tensor y =
      causal ? ops::self_attention(q, k, v, causal) : at::scaled_dot_product_attention(q, k, v, mask);
  return y.squeeze(0).transpose(0, 1);
}

// Grows a cache of `length` tokens to a capacity of `added` more, with the heads of like_TGK.
void grow(Tensor& stored_GLK, int64_t length, int64_t added, const Tensor& like_TGK) {
  const int64_t needed = length + added, capacity = stored_GLK.defined() ? stored_GLK.size(1) : 0;
  if (needed <= capacity) return;
  const int64_t blocks = (needed + kCacheBlock - 1) / kCacheBlock;
  const Tensor grown =
      at::empty({like_TGK.size(1), blocks * kCacheBlock, like_TGK.size(2)}, like_TGK.options());
  if (length > 0) grown.narrow(1, 0, length).copy_(stored_GLK.narrow(1, 0, length));
  stored_GLK = grown;
}

// Writes `added` behind the first `length` tokens and returns all.
Tensor put(const Tensor& stored_GLK, int64_t length, const Tensor& added_LGK) {
  stored_GLK.narrow(1, length, added_LGK.size(0)).copy_(added_LGK.transpose(0, 1));
  return stored_GLK.narrow(1, 0, length + added_LGK.size(0)).transpose(0, 1);
}

Tensor rotate(const Tensor& x_THK, const RotaryTable& rotary) {
  const auto halves = x_THK.chunk(2, -1);
  const Tensor turned_THK = at::cat({-halves[1], halves[0]}, -1);
  return (x_THK * rotary.cos_TK.unsqueeze(1) + turned_THK * rotary.sin_TK.unsqueeze(1))
      .to(x_THK.scalar_type());
}

// x W^T of each weight. by_row: as in generation, without gradients (linear_by_row).
std::vector<Tensor> products(const Tensor& x_TD, at::TensorList weights, bool by_row) {
  if (by_row) return ops::linear_by_row(x_TD, weights, x_TD.scalar_type());
  std::vector<Tensor> all;
  for (const Tensor& weight : weights) all.push_back(ops::linear(x_TD, weight));
  return all;
}

// Normalizes queries or keys, over all heads together or over each, and rotates each head.
Tensor normalize_and_rotate(const Tensor& x_TD, const Tensor& gain_N, const config::ModelConfig& model,
                            int64_t heads, const RotaryTable& rotary) {
  if (gain_N.defined()) {
    // A diffusion transformer always has LayerNorm here.
    const bool centered =
        model.type == config::ModelType::kDiffusionTransformer || model.norm == config::NormType::kLayer;
    return ops::norm_rotary(x_TD, gain_N, rotary.cos_TK, rotary.sin_TK, heads, model.norm_eps, centered);
  }
  const Tensor x_THK = x_TD.view({x_TD.size(0), heads, model.head_size()});
  return rotary.cos_TK.defined() ? rotate(x_THK, rotary) : x_THK;
}

QueryKeyValue project(const Tensor& x_TD, const AttentionWeights& weights, const config::ModelConfig& model,
                      const RotaryTable& rotary, bool by_row) {
  const int64_t H = model.num_heads, G = model.num_kv_heads(), K = model.head_size();
  std::vector<Tensor> qkv = products(x_TD, {weights.q, weights.k, weights.v}, by_row);
  if (weights.q_bias.defined()) {
    qkv[0] = qkv[0] + weights.q_bias;
    qkv[1] = qkv[1] + weights.k_bias;
    qkv[2] = qkv[2] + weights.v_bias;
  }
  return {normalize_and_rotate(qkv[0], weights.q_norm, model, H, rotary),
          normalize_and_rotate(qkv[1], weights.k_norm, model, G, rotary), qkv[2].view({x_TD.size(0), G, K})};
}

// Computes [T, H, K] for each type of mask.
struct MaskedAttention {
  const QueryKeyValue& qkv;
  int64_t layer;

  Tensor operator()(const SampleMask& mask) const {
    const auto [q, k, v] = split(mask.length);
    return ops::self_attention(q, k, v, mask.causal).transpose(1, 2);
  }
  Tensor operator()(const DocumentMask& mask) const {
    const int64_t H = qkv.q_THK.size(1);
    return ops::document_attention(qkv.q_THK, repeat_heads(qkv.k_TGK, H), repeat_heads(qkv.v_TGK, H),
                                   mask.offsets, mask.longest);
  }
  Tensor operator()(const BiasMask& mask) const {
    const auto [q, k, v] = split(mask.bias_B1LL.size(-1));
    return at::scaled_dot_product_attention(q, k, v, mask.bias_B1LL).transpose(1, 2);
  }
  Tensor operator()(SegmentMask* segments) const { return segments->attend(layer, qkv); }

 private:
  // [B, H, L, K] each.
  std::array<Tensor, 3> split(int64_t length) const {
    const auto one = [&](const Tensor& x_TGK) {
      const Tensor x_THK = repeat_heads(x_TGK, qkv.q_THK.size(1));
      return x_THK.view({x_THK.size(0) / length, length, x_THK.size(1), x_THK.size(2)}).transpose(1, 2);
    };
    return {one(qkv.q_THK), one(qkv.k_TGK), one(qkv.v_TGK)};
  }
};

}  // namespace

const KeyValueCache::Stored& KeyValueCache::reserve(int64_t layer, int64_t tokens, const Tensor& k_TGK,
                                                    const Tensor& v_TGK) {
  Stored& stored = layers_.at(layer);
  grow(stored.k_GLK, length_, tokens, k_TGK);
  grow(stored.v_GLK, length_, tokens, v_TGK);
  return stored;
}

void KeyValueCache::advance(int64_t tokens, int64_t document_begin) {
  length_ += tokens;
  document_begin_ = document_begin;
}

SegmentMask::SegmentMask(const Tensor& tokens_T, std::span<const Segment> segments,
                         std::optional<int64_t> end_of_text, int64_t window)
    : segments_(segments) {
  int64_t begin = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    const auto has_prefix = [](const Segment& of) { return of.cache != nullptr || of.parent != kNoParent; };
    const bool known = segment.parent < static_cast<int64_t>(i);
    if (!known ||
        (segment.parent != kNoParent && (segment.cache != nullptr || has_prefix(segments[segment.parent]))))
      throw std::invalid_argument(
          "segment_states: a parent must be an earlier segment without cache or parent");
    begin_.push_back(begin);
    begin += segment.length;
  }
  begin_.push_back(begin);
  if (tokens_T.dim() != 1 || tokens_T.size(0) != begin)
    throw std::invalid_argument("segments of " + std::to_string(begin) +
                                " tokens; number of tokens given: " + std::to_string(tokens_T.numel()));
  const Tensor positions_T = at::empty({begin}, at::kLong);
  auto* position = positions_T.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < segments.size(); ++i)
    std::iota(position + begin_[i], position + begin_[i + 1], prefix_length(segments[i]));
  positions_T_ = ops::to_device(positions_T, tokens_T.device());
  document_begin_.assign(segments.size(), 0);
  if (end_of_text || window > 0) set_first_seen(tokens_T.cpu(), end_of_text, window);
}

Tensor SegmentMask::attend(int64_t layer, const QueryKeyValue& qkv) const {
  Tensor mixed_THK = at::empty(qkv.q_THK.sizes(), qkv.q_THK.options());
  std::vector<ops::CachedSequence> decoded;
  for (size_t i = 0; i < segments_.size();) {
    if (qkv.q_THK.is_cpu() && segments_[i].cache != nullptr && segments_[i].length == 1) {
      decoded.push_back(cached(i, layer, qkv));
      ++i;
      continue;
    }
    const int64_t parent = segments_[i].parent;
    size_t last = i + 1;  // of siblings, which are computed together
    while (parent != kNoParent && last < segments_.size() && segments_[last].parent == parent) ++last;
    const int64_t begin = begin_[i], length = begin_[last] - begin;
    const QueryKeyValue own{qkv.q_THK.narrow(0, begin, length), qkv.k_TGK.narrow(0, begin, length),
                            qkv.v_TGK.narrow(0, begin, length)};
    Tensor out = mixed_THK.narrow(0, begin, length);
    if (length > 0) out.copy_(attend_to(i, last, layer, qkv, own));
    i = last;
  }
  if (!decoded.empty())
    ops::cached_attention(qkv.q_THK.contiguous(), qkv.k_TGK.contiguous(), qkv.v_TGK.contiguous(), decoded,
                          mixed_THK);
  return mixed_THK;
}

// The segment has one token.
ops::CachedSequence SegmentMask::cached(size_t index, int64_t layer, const QueryKeyValue& qkv) const {
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

// Positions include the continued tokens.
void SegmentMask::set_first_seen(const Tensor& tokens_T, std::optional<int64_t> end_of_text, int64_t window) {
  const Tensor first_seen_T = at::zeros_like(tokens_T);
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
Tensor SegmentMask::seen_only(const Tensor& mask, int64_t begin, int64_t before) const {
  if (!first_seen_T_.defined()) return mask;
  const Tensor own = positions_T_.narrow(0, begin, mask.size(0));
  const Tensor keys = at::cat({at::arange(before, own.options()), own});
  const Tensor first_seen = first_seen_T_.narrow(0, begin, mask.size(0));
  return mask.logical_and(keys.unsqueeze(0).ge(first_seen.unsqueeze(1)));
}

int64_t SegmentMask::prefix_length(const Segment& segment) const {
  if (segment.parent != kNoParent) return segments_[segment.parent].length;
  return segment.cache != nullptr ? segment.cache->length() : 0;
}

Tensor SegmentMask::attend_to(size_t first, size_t last, int64_t layer, const QueryKeyValue& all,
                              const QueryKeyValue& own) const {
  const Segment& segment = segments_[first];
  if (segment.parent != kNoParent) {
    const int64_t begin = begin_[segment.parent], length = segments_[segment.parent].length;
    const Tensor k = at::cat({all.k_TGK.narrow(0, begin, length), own.k_TGK});
    const Tensor v = at::cat({all.v_TGK.narrow(0, begin, length), own.v_TGK});
    const Tensor mask = sibling_mask(first, last, own.q_THK.options());
    return sdpa(own.q_THK, k, v, seen_only(mask, begin_[first], length), false);
  }
  Tensor k_LGK = own.k_TGK, v_LGK = own.v_TGK;
  const int64_t before = prefix_length(segment), total = before + segment.length;
  if (segment.cache != nullptr) {
    const auto& stored = segment.cache->reserve(layer, segment.length, own.k_TGK, own.v_TGK);
    const Tensor all_k = put(stored.k_GLK, before, own.k_TGK), all_v = put(stored.v_GLK, before, own.v_TGK);
    if (before > 0) {
      k_LGK = all_k;
      v_LGK = all_v;
    }
  }
  const bool hides = !hides_.empty() && hides_[first];
  if (before == 0 && !hides) return sdpa(own.q_THK, k_LGK, v_LGK, std::nullopt, /*causal=*/true);
  std::optional<Tensor> mask;
  if (segment.length > 1 || hides) {
    const Tensor earlier =
        at::ones({segment.length, total}, own.q_THK.options().dtype(at::kBool)).tril(before);
    mask = hides ? seen_only(earlier, begin_[first], before) : earlier;
  }
  return sdpa(own.q_THK, k_LGK, v_LGK, mask, false);
}

// Siblings attend to their parent and to their own earlier tokens.
Tensor SegmentMask::sibling_mask(size_t first, size_t last, const at::TensorOptions& options) const {
  const int64_t before = segments_[segments_[first].parent].length, total = begin_[last] - begin_[first];
  Tensor mask = at::zeros({total, before + total}, options.dtype(at::kBool));
  mask.narrow(1, 0, before).fill_(true);
  for (size_t i = first; i < last; ++i) {
    const int64_t begin = begin_[i] - begin_[first], length = segments_[i].length;
    mask.narrow(0, begin, length)
        .narrow(1, before + begin, length)
        .copy_(at::ones({length, length}, mask.options()).tril());
  }
  return mask;
}

AttentionWeights attention_weights(const config::ModelConfig& model, const std::string& prefix,
                                   const ParameterLookup& parameter) {
  AttentionWeights weights;
  weights.q = parameter(prefix + "q_proj.weight");
  weights.k = parameter(prefix + "k_proj.weight");
  weights.v = parameter(prefix + "v_proj.weight");
  if (model.qkv_bias) {
    weights.q_bias = parameter(prefix + "q_proj.bias");
    weights.k_bias = parameter(prefix + "k_proj.bias");
    weights.v_bias = parameter(prefix + "v_proj.bias");
  }
  if (model.qk_norm != config::QkNorm::kNone) {
    weights.q_norm = parameter(prefix + "q_norm.weight");
    weights.k_norm = parameter(prefix + "k_norm.weight");
  }
  weights.o = parameter(prefix + "o_proj.weight");
  return weights;
}

RotaryTable rotary_table(const Tensor& positions_T, const config::ModelConfig& model) {
  const Tensor positions = positions_T.to(at::kDouble);
  const Tensor exponents =
      at::arange(0, model.head_size(), 2, positions.options()).neg().div(model.head_size());
  const Tensor angle = positions.unsqueeze(1) * at::pow(model.rope_base, exponents);
  const Tensor angle_TK = at::cat({angle, angle}, 1);
  return {angle_TK.cos().to(at::kFloat), angle_TK.sin().to(at::kFloat)};
}

BiasMask window_mask(int64_t samples, int64_t length, int64_t window, const Tensor& offsets,
                     const at::TensorOptions& options) {
  const Tensor positions = at::arange(length, options.dtype(at::kLong));
  Tensor first_BL = (positions - (window - 1)).unsqueeze(0);
  if (offsets.defined()) {
    // Each sample begins with a document.
    const Tensor tokens = at::arange(samples * length, offsets.options());
    const Tensor document = at::searchsorted(offsets, tokens, /*out_int32=*/false, /*right=*/true) - 1;
    const Tensor begin = offsets.index_select(0, document).to(at::kLong).remainder(length);
    first_BL = at::maximum(first_BL, begin.view({-1, length}));
  }
  const Tensor seen_BLL =
      positions.ge(first_BL.unsqueeze(-1)).logical_and(positions.le(positions.unsqueeze(-1)));
  const Tensor bias = at::zeros(seen_BLL.sizes(), options);
  return {bias.masked_fill(seen_BLL.logical_not(), -std::numeric_limits<double>::infinity()).unsqueeze(1)};
}

Tensor attention(const Tensor& x_TD, const AttentionWeights& weights, const config::ModelConfig& model,
                 const RotaryTable& rotary, const AttentionMask& mask, int64_t layer) {
  RECORD_USER_SCOPE("layer " + std::to_string(layer) + " attention");
  const bool by_row = std::holds_alternative<SegmentMask*>(mask);
  const QueryKeyValue qkv = project(x_TD, weights, model, rotary, by_row);
  const Tensor mixed_THK = std::visit(MaskedAttention{qkv, layer}, mask);
  return products(mixed_THK.reshape({x_TD.size(0), weights.o.size(1)}), {weights.o}, by_row)[0];
}

}  // namespace dtopp::models

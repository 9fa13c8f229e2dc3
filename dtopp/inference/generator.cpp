#include "dtopp/inference/generator.h"

#include "dtopp/base/random.h"
#include "dtopp/moe/router.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/gemm/linear.h"
#include "dtopp/ops/route/route.h"

namespace dtopp::inference {
namespace {

struct RowRange {
  std::shared_ptr<moe::Router> router;
  int64_t rows = 0;
};

// Routes consecutive ranges of a pass's tokens with different routers: requests with different budgets share
// a pass. A selection holds gates and counts, but no means.
class RowRangesRouter final : public moe::Router {
 public:
  // The ranges hold all rows of a pass, in order.
  RowRangesRouter(const config::RunConfig& config, const at::Device& device, std::vector<RowRange> ranges)
      : moe::Router(config, device), ranges_(std::move(ranges)) {}

  ops::RouteOutput select(const moe::RouterInput& input) override {
    std::vector<Tensor> gates;
    int64_t begin = 0;
    for (const RowRange& range : ranges_) {
      const auto part = [&](const Tensor& rows) {
        return rows.defined() ? rows.narrow(0, begin, range.rows) : rows;
      };
      gates.push_back(
          range.router
              ->select({input.layer, part(input.logits_TE), input.scale, input.training, part(input.ids_T)})
              .gates_TE);
      begin += range.rows;
    }
    ops::RouteOutput output;
    output.gates_TE = at::cat(gates);
    ops::set_counts(output.gates_TE.ne(0), output);
    return output;
  }

 private:
  std::vector<RowRange> ranges_;
};

constexpr int64_t kScoredAtOnce = 64;  // rows of logits, which have the width of the vocabulary

// Returns the row of x that holds the last token of each segment.
Tensor last_rows(std::span<const models::Segment> segments) {
  Tensor rows = at::empty({std::ssize(segments)}, at::kLong);
  int64_t end = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    end += segments[i].length;
    rows.mutable_data_ptr<int64_t>()[i] = end - 1;
  }
  return rows;
}

// Returns the active experts of each token, mean over layers, f64 [T] on the host.
Tensor active_experts(const models::HiddenStates& states) {
  if (states.routing.empty()) return at::zeros({states.x_TD.size(0)}, at::kDouble);
  std::vector<Tensor> gates_L;
  for (const ops::RouteOutput& routing : states.routing) gates_L.push_back(routing.gates_TE);
  const Tensor sum_T = at::stack(gates_L).ne(0).sum(at::IntArrayRef{0, 2});
  return (sum_T.to(at::kDouble) / static_cast<double>(gates_L.size())).cpu();
}

// f32 [N, V]; greedy generation takes the lowest id of the highest ones.
Tensor logits_of(const Tensor& x_ND, const Tensor& head_VD) {
  return ops::linear_by_row(x_ND, at::TensorList(head_VD), at::kFloat)[0];
}

// Returns the id of the highest logit of each row, the lowest of equal ones. libtorch computes all rows on
// one thread.
Tensor likeliest_ids(const Tensor& logits_NV) {
  if (!logits_NV.is_cpu()) return logits_NV.argmax(-1).cpu();
  Tensor ids_N = at::empty({logits_NV.size(0)}, at::kLong);
  at::parallel_for(0, logits_NV.size(0), 1, [&](int64_t begin, int64_t end) {
    const c10::InferenceMode inference;
    for (int64_t n = begin; n < end; ++n)
      ids_N.mutable_data_ptr<int64_t>()[n] = logits_NV[n].argmax().item<int64_t>();
  });
  return ids_N;
}

// Scores the tokens `ids` that follow the rows of x.
std::vector<TokenScore> scores_of(const Tensor& x_ND, const Tensor& head_VD, std::span<const int32_t> ids,
                                  int64_t likeliest) {
  std::vector<TokenScore> scores;
  for (int64_t first = 0; first < x_ND.size(0); first += kScoredAtOnce) {
    const Tensor rows_ND = x_ND.slice(0, first, first + kScoredAtOnce);
    const Tensor log_probs_NV = at::log_softmax(logits_of(rows_ND, head_VD), -1).cpu();
    const auto [value_NK, id_NK] = log_probs_NV.topk(std::min(likeliest, log_probs_NV.size(1)));
    for (int64_t n = 0; n < log_probs_NV.size(0); ++n) {
      TokenScore& score = scores.emplace_back();
      score.id = ids[first + n];
      score.log_prob = log_probs_NV[n][score.id].item<double>();
      for (int64_t k = 0; k < value_NK.size(1); ++k)
        score.likeliest.emplace_back(id_NK[n][k].item<int32_t>(), value_NK[n][k].item<double>());
    }
  }
  return scores;
}

}  // namespace

int32_t sample_token(const Tensor& logits_V, double temperature, double top_p, double uniform) {
  const Tensor probability_V = at::softmax(logits_V.to(at::kDouble) / temperature, -1);
  const auto* probability = probability_V.const_data_ptr<double>();
  // A heap with the likeliest id on top. The ids taken from it follow it in reverse order.
  std::vector<int32_t> ids(static_cast<size_t>(probability_V.size(0)));
  std::iota(ids.begin(), ids.end(), 0);
  const auto is_later = [&](int32_t a, int32_t b) {
    return probability[a] < probability[b] || (probability[a] == probability[b] && a > b);
  };
  std::ranges::make_heap(ids, is_later);
  auto heap_end = ids.end();
  const auto take = [&] {
    std::pop_heap(ids.begin(), heap_end, is_later);
    return *--heap_end;
  };
  double mass = 0;
  if (top_p >= 1) {
    mass = 1;
  } else {
    do mass += probability[take()];
    while (heap_end != ids.begin() && mass < top_p);
  }
  double left = uniform * mass;
  for (auto taken = ids.end(); taken != heap_end;) {
    left -= probability[*--taken];
    if (left < 0) return *taken;
  }
  while (top_p >= 1 && heap_end != ids.begin()) {
    const int32_t id = take();
    left -= probability[id];
    if (left < 0) return id;
  }
  return *heap_end;
}

Generation::Generation(const InferenceModel& model, std::span<const std::vector<int32_t>> prompts,
                       std::span<const int64_t> max_tokens, const SamplingOptions& options)
    : Generation(model) {
  for (size_t i = 0; i < prompts.size(); ++i) add({prompts[i], max_tokens[i], options, i});
}

size_t Generation::add(SequenceInput input) {
  if (input.ids.empty()) throw std::invalid_argument("a prompt has no token");
  input.max_tokens = std::max<int64_t>(input.max_tokens, 0);
  std::vector<int32_t> ids = std::exchange(input.ids, {});
  sequences_.emplace(added_, Sequence{added_, std::move(input),
                                      models::KeyValueCache(model_.config.model.num_layers), std::move(ids)});
  return added_++;
}

void Generation::extend(size_t sequence, std::span<const int32_t> ids, int64_t max_tokens) {
  Sequence& extended = sequences_.at(sequence);
  extended.coming.insert(extended.coming.end(), ids.begin(), ids.end());
  extended.input.max_tokens = max_tokens;
}

// Sequences of one router are consecutive.
std::vector<Generation::Sequence*> Generation::unfinished() {
  std::vector<std::pair<std::shared_ptr<moe::Router>, std::vector<Sequence*>>> groups;
  for (auto& [number, sequence] : sequences_) {
    if (sequence.input.max_tokens == 0) continue;
    auto group =
        std::ranges::find(groups, sequence.input.router, [](const auto& known) { return known.first; });
    if (group == groups.end()) group = groups.insert(group, {sequence.input.router, {}});
    group->second.push_back(&sequence);
  }
  std::vector<Sequence*> sequences;
  for (const auto& [router, members] : groups)
    sequences.insert(sequences.end(), members.begin(), members.end());
  return sequences;
}

moe::Routing Generation::routing_of(std::span<Sequence* const> sequences) const {
  moe::Routing routing = model_.routing;
  routing.token_by_token = true;
  std::vector<RowRange> ranges;
  for (const Sequence* sequence : sequences) {
    const auto& router = sequence->input.router ? sequence->input.router : model_.routing.router;
    if (ranges.empty() || ranges.back().router != router) ranges.push_back({router, 0});
    ranges.back().rows += std::ssize(sequence->coming);
  }
  routing.router = ranges.front().router;
  if (ranges.size() > 1)
    routing.router = std::make_shared<RowRangesRouter>(model_.config, model_.device(), std::move(ranges));
  return routing;
}

std::vector<GeneratedToken> Generation::step() {
  const c10::InferenceMode inference;
  const std::vector<Sequence*> sequences = unfinished();
  if (sequences.empty()) return {};
  std::vector<models::Segment> segments;
  std::vector<int64_t> tokens;
  for (Sequence* sequence : sequences) {
    segments.push_back({std::ssize(sequence->coming), &sequence->cache, models::kNoParent});
    tokens.insert(tokens.end(), sequence->coming.begin(), sequence->coming.end());
  }
  models::HiddenStates states =
      models::segment_states(model_.model, ops::to_device(at::tensor(tokens, at::kLong), model_.device()),
                             segments, routing_of(sequences));
  const Tensor rows = ops::to_device(last_rows(segments), model_.device());
  const std::vector<int32_t> ids = choose(states.x_TD.index_select(0, rows), sequences);
  const Tensor active_T = active_experts(states);
  const auto* active = active_T.const_data_ptr<double>();
  std::vector<GeneratedToken> generated;
  for (size_t n = 0; n < sequences.size(); ++n) {
    const double* const end = active + segments[n].length;
    generated.push_back({sequences[n]->number, ids[n], end[-1], {active, end}, {}});
    active = end;
  }
  score(states.x_TD, sequences, generated);
  routing_ = std::move(states.routing);
  for (size_t n = 0; n < sequences.size(); ++n) {
    Sequence& sequence = *sequences[n];
    sequence.coming = {ids[n]};
    sequence.generated += 1;
    sequence.input.max_tokens -= 1;
  }
  std::ranges::sort(generated, {}, &GeneratedToken::sequence);
  return generated;
}

std::vector<int32_t> Generation::choose(const Tensor& x_ND, std::span<Sequence* const> sequences) const {
  const Tensor head_VD = model_.model.head_VD();
  std::vector<int32_t> ids(sequences.size());
  std::vector<int64_t> greedy, sampled;
  for (size_t n = 0; n < sequences.size(); ++n) {
    const bool is_greedy = sequences[n]->input.sampling.temperature <= 0;
    (is_greedy ? greedy : sampled).push_back(static_cast<int64_t>(n));
  }
  const auto rows = [&](const std::vector<int64_t>& chosen) {
    return x_ND.index_select(0, ops::to_device(at::tensor(chosen, at::kLong), x_ND.device()));
  };
  if (!greedy.empty()) {
    const Tensor likeliest = likeliest_ids(logits_of(rows(greedy), head_VD));
    for (size_t i = 0; i < greedy.size(); ++i)
      ids[greedy[i]] = static_cast<int32_t>(likeliest.const_data_ptr<int64_t>()[i]);
  }
  if (!sampled.empty()) {
    const Tensor logits = logits_of(rows(sampled), head_VD).cpu();
    at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Sequence& sequence = *sequences[sampled[i]];
        const SamplingOptions& options = sequence.input.sampling;
        const RandomStream stream(options.seed, "generation " + std::to_string(sequence.input.index));
        ids[sampled[i]] = sample_token(logits[i], options.temperature, options.top_p,
                                       stream.uniform(static_cast<uint64_t>(sequence.generated)));
      }
    });
  }
  return ids;
}

void Generation::score(const Tensor& x_TD, std::span<Sequence* const> sequences,
                       std::vector<GeneratedToken>& generated) const {
  int64_t end = 0;
  for (size_t n = 0; n < sequences.size(); ++n) {
    const Sequence& sequence = *sequences[n];
    end += std::ssize(sequence.coming);
    if (!sequence.input.likeliest) continue;
    std::vector<int32_t> ids = {generated[n].id};
    if (sequence.input.scores_prompt && sequence.generated == 0)
      ids.insert(ids.begin(), sequence.coming.begin() + 1, sequence.coming.end());
    const auto count = std::ssize(ids);
    generated[n].scores =
        scores_of(x_TD.narrow(0, end - count, count), model_.model.head_VD(), ids, *sequence.input.likeliest);
  }
}

}  // namespace dtopp::inference

#include "dtopp/inference/generator.h"

#include <algorithm>
#include <stdexcept>

#include "dtopp/base/random.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"
#include "dtopp/ops/gemm/linear.h"

namespace dtopp::inference {
namespace {

// Returns the row of x that holds the last token of each segment.
at::Tensor last_rows(std::span<const models::Segment> segments) {
  at::Tensor rows = at::empty({static_cast<int64_t>(segments.size())}, at::kLong);
  int64_t end = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    end += segments[i].length;
    rows.mutable_data_ptr<int64_t>()[i] = end - 1;
  }
  return rows;
}

// Returns the active experts of the token in each row, mean over layers, f64 [rows] on the host.
at::Tensor active_experts(const models::HiddenStates& states, const at::Tensor& rows) {
  at::Tensor sum = at::zeros({rows.size(0)}, rows.options().dtype(at::kDouble));
  for (const ops::RouteOutput& routing : states.routing) {
    sum += routing.gates_TE.index_select(0, rows).ne(0).sum(-1);
  }
  return (sum / static_cast<double>(std::max<size_t>(states.routing.size(), 1))).cpu();
}

}  // namespace

struct Generation::Sequence {
  size_t index = 0;
  models::KeyValueCache cache;
  std::vector<int32_t> coming;  // ids that are not in the cache yet
  int64_t room = 0;             // tokens that may still be generated; 0: the sequence is finished
  int64_t generated = 0;
};

int32_t sample_token(const at::Tensor& logits_V, double temperature, double top_p, double uniform) {
  const auto [probability_V, id_V] = at::softmax(logits_V.to(at::kDouble) / temperature, -1)
                                         .sort(/*stable=*/true, /*dim=*/-1,
                                               /*descending=*/true);
  const auto* probability = probability_V.const_data_ptr<double>();
  const auto* id = id_V.const_data_ptr<int64_t>();
  int64_t kept = 0;
  double mass = 0;
  while (kept < probability_V.size(0) && (kept == 0 || mass < top_p)) mass += probability[kept++];
  double left = uniform * mass;
  for (int64_t i = 0; i < kept; ++i) {
    left -= probability[i];
    if (left < 0) return static_cast<int32_t>(id[i]);
  }
  return static_cast<int32_t>(id[kept - 1]);
}

Generation::Generation(const InferenceModel& model, std::span<const std::vector<int32_t>> prompts,
                       std::span<const int64_t> max_tokens, const SamplingOptions& options)
    : model_(model), options_(options) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) throw std::invalid_argument("a prompt has no token");
    sequences_.push_back(
        std::make_unique<Sequence>(Sequence{i, models::KeyValueCache(model.config.model.num_layers),
                                            prompts[i], std::max<int64_t>(max_tokens[i], 0), 0}));
  }
}

Generation::~Generation() = default;

void Generation::finish(size_t sequence) { sequences_.at(sequence)->room = 0; }

void Generation::extend(size_t sequence, std::span<const int32_t> ids, int64_t max_tokens) {
  Sequence& extended = *sequences_.at(sequence);
  extended.coming.insert(extended.coming.end(), ids.begin(), ids.end());
  extended.room = max_tokens;
}

std::vector<GeneratedToken> Generation::step() {
  const at::NoGradGuard no_grad;
  std::vector<Sequence*> unfinished;
  std::vector<models::Segment> segments;
  std::vector<int64_t> tokens;
  for (const auto& sequence : sequences_) {
    if (sequence->room == 0) continue;
    unfinished.push_back(sequence.get());
    segments.push_back({static_cast<int64_t>(sequence->coming.size()), &sequence->cache, models::kNoParent});
    tokens.insert(tokens.end(), sequence->coming.begin(), sequence->coming.end());
  }
  if (unfinished.empty()) return {};
  models::HiddenStates states = models::segment_states(
      model_.model, ops::to_device(at::tensor(tokens, at::kLong), model_.device()), segments, model_.routing);
  const at::Tensor rows = ops::to_device(last_rows(segments), model_.device());
  const std::vector<int32_t> ids = choose(states.x_TD.index_select(0, rows), unfinished);
  const at::Tensor active = active_experts(states, rows);
  routing_ = std::move(states.routing);
  std::vector<GeneratedToken> generated;
  for (size_t n = 0; n < unfinished.size(); ++n) {
    Sequence& sequence = *unfinished[n];
    sequence.coming = {ids[n]};
    sequence.generated += 1;
    sequence.room -= 1;
    generated.push_back({sequence.index, ids[n], active.const_data_ptr<double>()[n]});
  }
  return generated;
}

std::vector<int32_t> Generation::choose(const at::Tensor& x_ND, std::span<Sequence* const> sequences) const {
  std::vector<int32_t> ids;
  const at::Tensor head_VD = model_.model.head_VD();
  if (options_.temperature <= 0) {
    const at::Tensor targets_N = at::zeros({x_ND.size(0)}, x_ND.options().dtype(at::kLong));
    const at::Tensor greedy = std::get<1>(ops::token_log_probs(x_ND, head_VD, targets_N)).cpu();
    const auto* id = greedy.const_data_ptr<int64_t>();
    for (int64_t n = 0; n < x_ND.size(0); ++n) ids.push_back(static_cast<int32_t>(id[n]));
    return ids;
  }
  const at::Tensor logits = ops::linear(x_ND, head_VD).to(at::kFloat).cpu();
  for (size_t n = 0; n < sequences.size(); ++n) {
    const RandomStream stream(options_.seed, "generation " + std::to_string(sequences[n]->index));
    ids.push_back(sample_token(logits[static_cast<int64_t>(n)], options_.temperature, options_.top_p,
                               stream.uniform(static_cast<uint64_t>(sequences[n]->generated))));
  }
  return ids;
}

}  // namespace dtopp::inference

#include "dtopp/eval/scoring.h"

#include <algorithm>

#include "dtopp/eval/generator.h"
#include "dtopp/ops/host_copy.h"
#include "dtopp/ops/linear_cross_entropy.h"

namespace dtopp {
namespace {

// The tokens of some requests as segments, and which of their rows predict which token.
struct ScoringBatch {
  std::vector<int64_t> tokens;
  std::vector<Segment> segments;
  std::vector<int64_t> rows, targets;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }

  void add_segment(std::span<const int32_t> ids, int64_t parent) {
    segments.push_back({static_cast<int64_t>(ids.size()), nullptr, parent});
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
};

std::span<const int32_t> all_but_last(const std::vector<int32_t>& ids) {
  return std::span(ids).first(ids.empty() ? 0 : ids.size() - 1);
}

// The shared context is one segment, computed once. Each choice continues it in a segment of its own, without
// its last token: what the model predicts after that one is not scored.
void add_shared(const Request& request, ScoringBatch& batch) {
  const auto parent = static_cast<int64_t>(batch.segments.size());
  batch.add_segment(request.contexts[0], kNoParent);
  const int64_t context_end = batch.size() - 1;
  for (const std::vector<int32_t>& continuation : request.continuations) {
    int64_t row = context_end;
    for (size_t i = 0; i < continuation.size(); ++i) {
      batch.rows.push_back(row);
      batch.targets.push_back(continuation[i]);
      row = i == 0 ? batch.size() : row + 1;
    }
    batch.add_segment(all_but_last(continuation), parent);
  }
}

void add_separate(const Request& request, ScoringBatch& batch) {
  for (size_t choice = 0; choice < request.continuations.size(); ++choice) {
    const std::vector<int32_t>& continuation = request.continuations[choice];
    std::vector<int32_t> ids = request.context(choice);
    const int64_t first_row = batch.size() + static_cast<int64_t>(ids.size()) - 1;
    for (size_t i = 0; i < continuation.size(); ++i) {
      batch.rows.push_back(first_row + static_cast<int64_t>(i));
      batch.targets.push_back(continuation[i]);
    }
    const auto seen = all_but_last(continuation);
    ids.insert(ids.end(), seen.begin(), seen.end());
    batch.add_segment(ids, kNoParent);
  }
}

int64_t tokens_of(const Request& request) {
  int64_t tokens = 0;
  for (const auto& context : request.contexts) tokens += static_cast<int64_t>(context.size());
  for (const auto& continuation : request.continuations) tokens += static_cast<int64_t>(continuation.size());
  return tokens;
}

void score_continuations(const InferenceModel& model, std::span<const Request> requests,
                         std::vector<Scores>& scores) {
  ScoringBatch batch;
  for (const Request& request : requests) {
    if (request.contexts.size() == 1) {
      add_shared(request, batch);
    } else {
      add_separate(request, batch);
    }
  }
  const auto ids = [&](const std::vector<int64_t>& values) {
    return to_device(at::tensor(values, at::kLong), model.device());
  };
  const HiddenStates states = segment_states(model.model, ids(batch.tokens), batch.segments, model.routing);
  const auto [log_probs_N, greedy_N] = token_log_probs(states.x_TD.index_select(0, ids(batch.rows)),
                                                       model.model.head_VD(), ids(batch.targets));
  const HostCopy host({log_probs_N, greedy_N});
  const auto* log_prob = host.get()[0].const_data_ptr<float>();
  const auto* greedy = host.get()[1].const_data_ptr<int64_t>();
  for (const Request& request : requests) {
    Scores& one = scores.emplace_back();
    for (const std::vector<int32_t>& continuation : request.continuations) {
      const size_t count = continuation.size();
      one.log_probs.emplace_back(log_prob, log_prob + count);
      one.greedy.push_back(std::equal(continuation.begin(), continuation.end(), greedy));
      log_prob += count;
      greedy += count;
    }
  }
}

void generate_answers(const InferenceModel& model, const Tokenizer& tokenizer,
                      std::span<const Request> requests, std::vector<Scores>& scores) {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int64_t> budgets;
  for (const Request& request : requests) {
    prompts.push_back(request.contexts.at(0));
    budgets.push_back(request.max_new_tokens);
  }
  const size_t first = scores.size();
  scores.resize(first + requests.size());
  generate(model, prompts, budgets, SamplingOptions{}, [&](const GeneratedToken& token) {
    if (token.id == tokenizer.end_of_text()) return false;
    Scores& one = scores[first + token.sequence];
    one.generated.push_back(token.id);
    one.generated_text = tokenizer.decode_generated(one.generated);
    return cut_at_stop_string(one.generated_text).size() == one.generated_text.size();
  });
}

}  // namespace

std::vector<Scores> score_requests(const InferenceModel& model, const Tokenizer& tokenizer,
                                   std::span<const Request> requests, int64_t batch_tokens,
                                   const std::function<void(size_t)>& progress,
                                   const std::function<bool()>& stop) {
  std::vector<Scores> scores;
  for (size_t first = 0; first < requests.size();) {
    if (stop()) break;
    const bool generation = requests[first].continuations.empty();
    size_t last = first;
    int64_t tokens = 0;
    while (last < requests.size() && (last == first || tokens + tokens_of(requests[last]) <= batch_tokens)) {
      tokens += tokens_of(requests[last++]);
    }
    const auto batch = requests.subspan(first, last - first);
    if (generation) {
      generate_answers(model, tokenizer, batch, scores);
    } else {
      score_continuations(model, batch, scores);
    }
    first = last;
    progress(first);
  }
  return scores;
}

}  // namespace dtopp

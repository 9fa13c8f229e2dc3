#include "dtopp/eval/scoring.h"

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/manifest.h"
#include "dtopp/device/device.h"
#include "dtopp/inference/generator.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"

namespace dtopp::eval {
namespace {

// The tokens of some requests as segments. The hidden state in row rows[i] predicts token targets[i].
struct ScoringBatch {
  std::vector<int64_t> tokens;
  std::vector<models::Segment> segments;
  std::vector<int64_t> rows, targets;

  int64_t size() const { return std::ssize(tokens); }

  void add_segment(std::span<const int32_t> ids, int64_t parent) {
    segments.push_back({std::ssize(ids), nullptr, parent});
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
};

std::span<const int32_t> all_but_last(const std::vector<int32_t>& ids) {
  return std::span(ids).first(ids.empty() ? 0 : ids.size() - 1);
}

// Adds the shared context as one segment, so that it is computed once. Each choice continues it in its own
// segment, without its last token: the prediction after that token is not scored.
void add_shared(const tasks::Request& request, ScoringBatch& batch) {
  const auto parent = std::ssize(batch.segments);
  batch.add_segment(request.contexts[0], models::kNoParent);
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

void add_separate(const tasks::Request& request, ScoringBatch& batch) {
  for (size_t choice = 0; choice < request.continuations.size(); ++choice) {
    const std::vector<int32_t>& continuation = request.continuations[choice];
    std::vector<int32_t> ids = request.context(choice);
    const int64_t first_row = batch.size() + std::ssize(ids) - 1;
    for (size_t i = 0; i < continuation.size(); ++i) {
      batch.rows.push_back(first_row + static_cast<int64_t>(i));
      batch.targets.push_back(continuation[i]);
    }
    const auto seen = all_but_last(continuation);
    ids.insert(ids.end(), seen.begin(), seen.end());
    batch.add_segment(ids, models::kNoParent);
  }
}

int64_t tokens_of(const tasks::Request& request) {
  int64_t tokens = 0;
  for (const auto& context : request.contexts) tokens += std::ssize(context);
  for (const auto& continuation : request.continuations) tokens += std::ssize(continuation);
  return tokens;
}

// Sums on the device, so that the host waits for it only once.
tasks::ExpertUse use_of(const std::vector<ops::RouteOutput>& layers) {
  if (layers.empty()) return {};
  std::vector<Tensor> counts;
  for (const ops::RouteOutput& layer : layers) counts.push_back(layer.tokens_per_expert_E);
  const auto num_layers = std::ssize(layers);
  return {at::stack(counts).sum().item<int64_t>(), num_layers * layers[0].gates_TE.size(0)};
}

ScoredRequests score_continuations(const inference::InferenceModel& model,
                                   std::span<const tasks::Request> requests) {
  ScoringBatch batch;
  for (const tasks::Request& request : requests) {
    if (request.contexts.size() == 1) {
      add_shared(request, batch);
    } else {
      add_separate(request, batch);
    }
  }
  const auto ids = [&](const std::vector<int64_t>& values) {
    return ops::to_device(at::tensor(values, at::kLong), model.device());
  };
  const models::HiddenStates states =
      models::segment_states(model.model, ids(batch.tokens), batch.segments, model.routing);
  const auto [log_probs_N, greedy_N] = ops::token_log_probs(states.x_TD.index_select(0, ids(batch.rows)),
                                                            model.model.head_VD(), ids(batch.targets));
  const ops::HostCopy host({log_probs_N, greedy_N});
  const auto* log_prob = host.get()[0].const_data_ptr<float>();
  const auto* greedy = host.get()[1].const_data_ptr<int64_t>();
  ScoredRequests scored{{}, use_of(states.routing)};
  for (const tasks::Request& request : requests) {
    tasks::Scores& one = scored.scores.emplace_back();
    for (const std::vector<int32_t>& continuation : request.continuations) {
      const size_t count = continuation.size();
      one.log_probs.emplace_back(log_prob, log_prob + count);
      one.greedy.push_back(std::equal(continuation.begin(), continuation.end(), greedy));
      log_prob += count;
      greedy += count;
    }
  }
  return scored;
}

// Whether the last token of an answer completes a stop string. Each token with text has at least one byte, so
// the last tokens that have text contain the stop string. `last` holds them.
bool completes_stop_string(int32_t id, const data::Tokenizer& tokenizer, std::vector<int32_t>& last) {
  constexpr size_t kMostBytes = std::ranges::max(tasks::kStopStrings, {}, &std::string_view::size).size();
  if (tokenizer.text_bytes(id) == 0) return false;
  last.push_back(id);
  if (last.size() > kMostBytes) last.erase(last.begin());
  const std::string text = tokenizer.decode_generated(last);
  return tasks::cut_at_stop_string(text).size() < text.size();
}

ScoredRequests generate_answers(const inference::InferenceModel& model, const data::Tokenizer& tokenizer,
                                std::span<const tasks::Request> requests) {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int64_t> budgets;
  for (const tasks::Request& request : requests) {
    prompts.push_back(request.contexts.at(0));
    budgets.push_back(request.max_new_tokens);
  }
  ScoredRequests scored{std::vector<tasks::Scores>(requests.size()), {}};
  std::vector<std::vector<int32_t>> last(requests.size());  // completes_stop_string
  inference::Generation generation(model, prompts, budgets, inference::SamplingOptions{});
  for (auto tokens = generation.step(); !tokens.empty(); tokens = generation.step()) {
    scored.experts += use_of(generation.routing());
    for (const inference::GeneratedToken& token : tokens) {
      if (token.id == tokenizer.end_of_text()) {
        generation.finish(token.sequence);
        continue;
      }
      scored.scores[token.sequence].generated.push_back(token.id);
      if (completes_stop_string(token.id, tokenizer, last[token.sequence])) generation.finish(token.sequence);
    }
  }
  for (tasks::Scores& one : scored.scores) one.generated_text = tokenizer.decode_generated(one.generated);
  return scored;
}

struct RequestBatch {
  size_t data_set;
  std::span<const tasks::Request> requests;
  uint64_t end;  // number of requests of the task up to the end of this batch
};

std::vector<RequestBatch> batches_of(const tasks::TaskRequests& task, int64_t batch_tokens) {
  std::vector<RequestBatch> batches;
  uint64_t end = 0;
  for (size_t i = 0; i < task.requests.size(); ++i) {
    const std::span<const tasks::Request> requests = task.requests[i];
    for (size_t first = 0; first < requests.size();) {
      size_t last = first;
      int64_t tokens = 0;
      while (last < requests.size() &&
             (last == first || tokens + tokens_of(requests[last]) <= batch_tokens)) {
        tokens += tokens_of(requests[last++]);
      }
      end += last - first;
      batches.push_back({i, requests.subspan(first, last - first), end});
      first = last;
    }
  }
  return batches;
}

std::string pack(const std::vector<ScoredRequests>& batches) {
  using nlohmann::json;
  json list = json::array();
  for (const ScoredRequests& batch : batches) {
    json scores = json::array();
    for (const tasks::Scores& one : batch.scores)
      scores.push_back(json::array({one.log_probs, one.greedy, one.generated, one.generated_text}));
    list.push_back(json::array({batch.experts.selected, batch.experts.routed, std::move(scores)}));
  }
  return pack_json(list);
}

std::vector<ScoredRequests> unpack(const std::string& bytes) {
  std::vector<ScoredRequests> batches;
  for (const nlohmann::json& packed : unpack_json(bytes)) {
    ScoredRequests& batch = batches.emplace_back();
    batch.experts = {packed[0].get<int64_t>(), packed[1].get<int64_t>()};
    for (const nlohmann::json& entry : packed[2]) {
      tasks::Scores& one = batch.scores.emplace_back();
      entry[0].get_to(one.log_probs);
      entry[1].get_to(one.greedy);
      entry[2].get_to(one.generated);
      entry[3].get_to(one.generated_text);
    }
  }
  return batches;
}

// Returns one tally per data set; nullopt if stopped before the end.
std::optional<std::vector<tasks::Tally>> run_task(const inference::InferenceModel& model,
                                                  const data::Tokenizer& tokenizer,
                                                  const tasks::TaskRequests& requests,
                                                  tasks::KeptResults& kept, int64_t batch_tokens,
                                                  distributed::Collectives& ranks, inference::Watch& watch) {
  const std::string name(requests.task.name);
  size_t total = 0;
  for (const auto& data_set : requests.requests) total += data_set.size();
  watch.begin(name, "items", total);
  const auto scored = score_task(model, tokenizer, requests, batch_tokens, ranks, watch);
  if (!scored) return std::nullopt;
  std::vector<tasks::Tally> tallies;
  std::string dump;
  for (size_t i = 0; i < requests.data_sets.size(); ++i) {
    const tasks::DataSet& data = requests.data_sets[i];
    const std::vector<tasks::Scores>& of_data = (*scored)[i].scores;
    const std::vector<tasks::Answer> answers = tasks::judge_all(requests, i, of_data);
    tallies.push_back(tasks::tally(data, answers));
    tallies.back().experts = (*scored)[i].experts;
    for (size_t n = 0; n < of_data.size() && kept.keeps(); ++n)
      dump += tasks::dump_line(requests.task, data, requests.requests[i][n], &of_data[n], &answers[n]) + "\n";
  }
  if (!kept.keep(requests, tallies, std::move(dump)))
    watch.message(name + ": the finished task is not stored: " + kept.folder().string() +
                  " has other files of its names; move them to another folder");
  return tallies;
}

}  // namespace

std::optional<std::vector<ScoredRequests>> score_task(const inference::InferenceModel& model,
                                                      const data::Tokenizer& tokenizer,
                                                      const tasks::TaskRequests& task, int64_t batch_tokens,
                                                      distributed::Collectives& ranks,
                                                      inference::Watch& watch) {
  const std::vector<RequestBatch> batches = batches_of(task, batch_tokens);
  std::vector<ScoredRequests> mine;
  std::vector<uint64_t> ends;
  for (const RequestBatch& batch : batches) ends.push_back(batch.end);
  inference::SharedBatches shared(std::move(ends), ranks, watch);
  while (const auto b = shared.next()) {
    const auto& requests = batches[*b].requests;
    const bool generation = requests[0].continuations.empty();
    mine.push_back(generation ? generate_answers(model, tokenizer, requests)
                              : score_continuations(model, requests));
  }
  if (shared.stopped()) return std::nullopt;
  std::vector<std::vector<ScoredRequests>> of_ranks;
  for (const std::string& bytes : distributed::gather_bytes(ranks, pack(mine), "scores"))
    of_ranks.push_back(unpack(bytes));
  std::vector<ScoredRequests> scored(task.requests.size());
  for (size_t b = 0; b < batches.size(); ++b) {
    const ScoredRequests& batch = of_ranks[b % of_ranks.size()][b / of_ranks.size()];
    ScoredRequests& of_data_set = scored[batches[b].data_set];
    of_data_set.scores.insert(of_data_set.scores.end(), batch.scores.begin(), batch.scores.end());
    of_data_set.experts += batch.experts;
  }
  return scored;
}

std::vector<tasks::TaskResult> run_tasks(const inference::InferenceModel& model,
                                         const data::Tokenizer& tokenizer,
                                         std::span<const tasks::TaskRequests> tasks, tasks::KeptResults& kept,
                                         int64_t batch_tokens, distributed::Collectives& ranks,
                                         inference::Watch& watch) {
  std::vector<tasks::TaskResult> results;
  for (const tasks::TaskRequests& requests : tasks) {
    const std::string name(requests.task.name);
    auto tallies = kept.find(requests);
    if (tallies)
      watch.message(name + ": finished by an earlier run; results taken from " + kept.folder().string());
    if (!distributed::any_of(ranks, tallies.has_value())) {
      tallies = run_task(model, tokenizer, requests, kept, batch_tokens, ranks, watch);
      if (!tallies) {
        throw Stopped("stopped in ", name, " after ", results.size(), " finished tasks; ",
                      (kept.keeps() ? "run the same command again to resume"
                                    : "they are not kept without --output or --dump"));
      }
    }
    if (tallies) results.push_back(tasks::summarize(requests.task, *tallies));
  }
  return results;
}

ordered_json run_key(const checkpoint::Checkpoint& checkpoint, const inference::InferenceModel& model,
                     const data::Tokenizer& tokenizer, const std::string& version) {
  // "cpu" alone: a CPU's description names the number of threads, which may differ on resume.
  const at::Device device = model.device();
  return {{"checkpoint", hash_file(checkpoint.path() / kManifestName)},
          {"thresholds",
           model.routing.router ? model.routing.router->metric("threshold") : std::vector<double>()},
          {"tokenizer", tokenizer.hash()},
          {"precision", c10::toString(model.model.embed_VD().scalar_type())},
          {"device", device.is_cpu() ? "cpu" : device::describe_device(device)},
          {"version", version}};
}

ordered_json to_json(std::span<const BudgetResult> sweep, std::span<const tasks::LongTask> left_out) {
  ordered_json entries = ordered_json::array();
  for (const BudgetResult& budget : sweep) {
    ordered_json entry = to_json(budget.results, left_out);
    entry["target_experts"] = budget.target_experts;
    entries.push_back(std::move(entry));
  }
  return {{"sweep", std::move(entries)}};
}

std::string format_table(std::span<const BudgetResult> sweep, std::span<const tasks::LongTask> left_out) {
  std::string table = tasks::format_left_out(left_out) + "  target   average\n";
  for (const BudgetResult& budget : sweep)
    table += format("%8g%10.1f\n", budget.target_experts, 100 * tasks::average(budget.results));
  return table;
}

}  // namespace dtopp::eval

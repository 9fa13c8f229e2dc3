#include "dtopp/eval/perplexity.h"

#include <set>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/config/data_config.h"
#include "dtopp/data/text/prepare_text.h"
#include "dtopp/inference/expert_budget.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/cross_entropy/linear_cross_entropy.h"

namespace dtopp::eval {
bool is_token_data(const fs::path& path) {
  if (path.extension() == ".npy" || path.extension() == ".bin") return true;
  const PathKind kind = path_kind(path);
  return kind == PathKind::kDirectory ||
         (kind == PathKind::kNothing && path_kind(path.string() + ".idx") != PathKind::kNothing);
}

void EvaluationText::Source::read(uint64_t offset, std::span<int64_t> out) const {
  if (stream) return stream->read(offset, out);
  std::copy_n(ids.begin() + static_cast<int64_t>(offset), out.size(), out.begin());
}

EvaluationText::EvaluationText(const fs::path& path, int64_t vocab_size) {
  sources_.push_back({path, data::TokenStream::open(path, data::Verify::kChanged, vocab_size)});
  sources_.back().stream->require_ids_below(vocab_size);
}

EvaluationText::EvaluationText(const fs::path& path, const data::Tokenizer& tokenizer) {
  sources_.push_back({path, std::nullopt, data::encode_file(path, tokenizer)});
}

void EvaluationText::append(EvaluationText other) {
  for (Source& source : other.sources_) sources_.push_back(std::move(source));
}

uint64_t EvaluationText::size() const {
  uint64_t size = first_ ? 1 : 0;
  for (const Source& source : sources_) size += source.size();
  return size;
}

void EvaluationText::read(uint64_t offset, std::span<int64_t> out) const {
  if (first_ && offset == 0 && !out.empty()) {
    out[0] = *first_;
    out = out.subspan(1);
  } else if (first_) {
    offset -= 1;
  }
  for (const Source& source : sources_) {
    if (offset >= source.size()) {
      offset -= source.size();
      continue;
    }
    const auto count = std::min<uint64_t>(out.size(), source.size() - offset);
    source.read(offset, out.first(count));
    out = out.subspan(count);
    offset = 0;
  }
}

std::vector<TextSegment> EvaluationText::segments() const {
  std::vector<TextSegment> segments;
  uint64_t begin = 0;
  for (const Source& source : sources_) {
    const uint64_t size = source.size() + (first_ ? 1 : 0);
    if (size < 2) throw DataError(source.path, ": has no token to predict; it needs at least two tokens");
    segments.push_back({begin, begin + size - 1});
    begin += size;
  }
  return segments;
}

std::vector<std::string> EvaluationText::source_names() const {
  std::vector<config::DataSource> sources;
  for (const Source& source : sources_) sources.push_back({.path = source.path.string()});
  std::set<fs::path> paths;
  for (const Source& source : sources_)
    if (!paths.insert(source.path.lexically_normal()).second)
      throw UsageError("--text: names ", source.path, " twice; give it once");
  return config::source_names(sources);
}

Tensor EvaluationText::beginning(int64_t sequence_length) const {
  const auto length = static_cast<uint64_t>(sequence_length);
  const uint64_t room = static_cast<uint64_t>(models::kSolveTokens) / sources_.size();
  std::vector<int64_t> ids;
  for (const Source& source : sources_) {
    uint64_t count = std::min(source.size(), std::max(room, length));
    if (sources_.size() > 1) count -= count % length;  // windows of one source alone
    ids.resize(ids.size() + count);
    source.read(0, std::span(ids).last(count));
  }
  return inference::solving_windows(ids, sequence_length, sources_.front().path.string());
}

namespace {

// Windows of equal length in one source. Each begins at one of the offsets and predicts `length` ids.
struct WindowBatch {
  std::vector<uint64_t> offsets;
  int64_t length;
  size_t source;
};

// Calls body(begin, ids) for parts of the text, in order.
template <typename Body>
void for_parts(const EvaluationText& text, const Body& body) {
  constexpr uint64_t kPart = 1 << 16;
  std::vector<int64_t> ids;
  for (uint64_t begin = 0; begin < text.size(); begin += kPart) {
    ids.resize(std::min(kPart, text.size() - begin));
    text.read(begin, ids);
    body(begin, ids);
  }
}

// Returns the documents of a text of one source. Each begins with the id that ends the one before.
std::vector<TextSegment> documents_of(const EvaluationText& text, int64_t end_of_text) {
  std::vector<TextSegment> documents;
  uint64_t from = 0;
  const auto end_at = [&](uint64_t last) {
    if (last > from) documents.push_back({from, last});
    from = last;
  };
  for_parts(text, [&](uint64_t begin, const std::vector<int64_t>& ids) {
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] == end_of_text) end_at(begin + i);
  });
  end_at(text.size() - 1);
  return documents;
}

void add_windows(const TextSegment& segment, size_t source, int64_t length, int64_t batch_size,
                 std::vector<WindowBatch>& batches) {
  for (uint64_t offset = segment.begin; offset < segment.last; offset += static_cast<uint64_t>(length)) {
    const int64_t predicted = std::min(length, static_cast<int64_t>(segment.last - offset));
    const bool fits = !batches.empty() && batches.back().length == predicted &&
                      batches.back().source == source &&
                      static_cast<int64_t>(batches.back().offsets.size()) < batch_size;
    if (!fits) batches.push_back({{}, predicted, source});
    batches.back().offsets.push_back(offset);
  }
}

std::vector<WindowBatch> batches_of(const EvaluationText& text, const std::vector<TextSegment>& sources,
                                    std::optional<int64_t> end_of_text, int64_t length, int64_t batch_size) {
  std::vector<WindowBatch> batches;
  if (end_of_text) {
    for (const TextSegment& document : documents_of(text, *end_of_text))
      add_windows(document, /*source=*/0, length, batch_size, batches);
    return batches;
  }
  for (size_t source = 0; source < sources.size(); ++source)
    add_windows(sources[source], source, length, batch_size, batches);
  return batches;
}

Tensor read_batch(const EvaluationText& text, const WindowBatch& batch) {
  const auto count = std::ssize(batch.offsets);
  const Tensor ids = at::empty({count, batch.length + 1}, at::kLong);
  for (int64_t i = 0; i < count; ++i)
    text.read(batch.offsets[i],
              std::span(ids.mutable_data_ptr<int64_t>() + i * ids.size(1), static_cast<size_t>(ids.size(1))));
  return ids;
}

}  // namespace

Perplexity measure_perplexity(const inference::InferenceModel& model, const EvaluationText& text,
                              int64_t batch_size, distributed::Collectives& ranks, inference::Watch& watch,
                              const PerplexityOptions& options) {
  const std::vector<TextSegment> sources = text.segments();
  const at::NoGradGuard no_grad;
  const int64_t stride = model.config.model.sequence_length;
  const std::vector<WindowBatch> batches = batches_of(text, sources, options.end_of_text, stride, batch_size);
  const auto num_batches = std::ssize(batches);
  const int64_t L = model.routing.router ? model.routing.router->num_layers() : 0;
  const int64_t E = model.config.model.num_experts;
  std::vector<moe::ActivationStatistics> activations(sources.size(), moe::ActivationStatistics(L));
  const Tensor sums_B = at::zeros({num_batches}, at::kDouble);  // sum of log probabilities per batch
  std::vector<uint64_t> ends;
  for (const WindowBatch& batch : batches)
    ends.push_back(batch.offsets.back() + static_cast<uint64_t>(batch.length));
  inference::SharedBatches shared(std::move(ends), ranks, watch);
  while (const auto b = shared.next()) {
    const WindowBatch& batch = batches[*b];
    const Tensor windows = ops::to_device(read_batch(text, batch), model.device());
    const TextWindows inputs{windows.narrow(1, 0, batch.length), batch.offsets.front(),
                             static_cast<uint64_t>(stride)};
    moe::Routing routing = model.routing;
    if (options.routers != nullptr)
      routing.router = options.routers->for_tokens(inputs.offset, inputs.ids_BL.numel());
    const models::HiddenStates states = models::hidden_states(model.model, inputs.ids_BL, routing);
    const auto [log_probs_T, greedy_T] = ops::token_log_probs(
        states.x_TD, model.model.head_VD(), windows.narrow(1, 1, batch.length).reshape({-1}));
    sums_B[static_cast<int64_t>(*b)] = log_probs_T.to(at::kDouble).sum();
    activations[batch.source].add(states.routing);
    if (options.observer != nullptr) options.observer->add(inputs, states, log_probs_T);
  }
  if (shared.stopped()) throw Stopped("stopped before the end of the text; no result is kept");

  std::vector<Tensor> parts = {sums_B};
  for (const moe::ActivationStatistics& of_source : activations)
    parts.push_back(of_source.to_vector(E, model.device()).cpu());
  const Tensor values = at::cat(parts);
  ranks.all_reduce_sum(values, "perplexity").wait();
  std::vector<SourcePerplexity> results;
  int64_t begin = num_batches;
  for (size_t s = 0; s < sources.size(); ++s) {
    SourcePerplexity& one = results.emplace_back();
    one.tokens = static_cast<int64_t>(sources[s].last - sources[s].begin);
    const int64_t size = moe::ActivationStatistics::vector_size(L, E);
    one.activations = moe::ActivationStatistics::from_vector(values.narrow(0, begin, size), L, E, one.tokens);
    begin += size;
  }
  Perplexity result;
  result.activations = moe::ActivationStatistics(L);
  double sum = 0;
  for (int64_t b = 0; b < num_batches; ++b) {
    sum -= values[b].item<double>();
    results[batches[b].source].nll -= values[b].item<double>();
  }
  for (SourcePerplexity& one : results) {
    one.nll /= static_cast<double>(one.tokens);
    result.tokens += one.tokens;
    result.activations.add(one.activations);
  }
  result.nll = sum / static_cast<double>(result.tokens);
  if (results.size() == 1) return result;
  const std::vector<std::string> names = text.source_names();
  for (size_t s = 0; s < results.size(); ++s) results[s].name = names[s];
  result.sources = std::move(results);
  return result;
}

int64_t predicted_bytes(const EvaluationText& text, const data::Tokenizer& tokenizer) {
  std::vector<int64_t> bytes_V;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id)
    bytes_V.push_back(tokenizer.text_bytes(static_cast<int32_t>(id)));
  int64_t bytes = 0;
  for_parts(text, [&](uint64_t begin, const std::vector<int64_t>& ids) {
    for (size_t i = begin == 0 ? 1 : 0; i < ids.size(); ++i)
      if (ids[i] < tokenizer.vocab_size()) bytes += bytes_V[ids[i]];
  });
  return bytes;
}

}  // namespace dtopp::eval

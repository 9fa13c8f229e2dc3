#include "dtopp/eval/activation_analysis.h"

#include <unordered_map>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"

namespace dtopp::eval {
namespace {

TokenKinds by_frequency(std::span<const int64_t> ids) {
  std::unordered_map<int64_t, int64_t> counts;
  for (const int64_t id : ids) ++counts[id];
  std::vector<int64_t> ranked;
  ranked.reserve(counts.size());
  for (const auto& [id, count] : counts) ranked.push_back(id);
  std::ranges::sort(
      ranked, [&](int64_t a, int64_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; });
  std::unordered_map<int64_t, uint8_t> kind_of;
  for (size_t rank = 0; rank < ranked.size(); ++rank) {
    uint8_t kind = 0;
    for (size_t end = 10; kind < 4 && rank >= end; end *= 10) ++kind;
    kind_of.emplace(ranked[rank], kind);
  }
  TokenKinds kinds{
      "frequency", {"rank 1-10", "rank 11-100", "rank 101-1000", "rank 1001-10000", "rank over 10000"}, {}};
  for (const int64_t id : ids) kinds.kind.push_back(kind_of.at(id));
  return kinds;
}

TokenKinds by_position(size_t tokens, int64_t sequence_length, std::span<const uint64_t> begins) {
  const auto length = static_cast<uint64_t>(sequence_length);
  TokenKinds kinds{"position", {"0"}, {}};
  for (uint64_t first = 1; first < length; first *= 2) {
    const uint64_t last = std::min(2 * first, length) - 1;
    kinds.names.push_back(first == last ? std::to_string(first)
                                        : std::to_string(first) + "-" + std::to_string(last));
  }
  uint64_t begin = 0;
  for (size_t i = 0; i < tokens; ++i) {
    if (!begins.empty() && begins.front() == i) {
      begin = i;
      begins = begins.subspan(1);
    }
    kinds.kind.push_back(static_cast<uint8_t>(std::bit_width((i - begin) % length)));
  }
  return kinds;
}

enum PartOfWord : uint8_t { kWhole, kBeginning, kRest, kNumber, kPunctuation, kWhiteSpace, kNothing };

struct TokenText {
  PartOfWord part = kNothing;  // kWhole: of any part of a word
  bool joins = false;          // no white space before its first character
  bool open = false;           // ends with a letter
};

// Bytes of characters outside ASCII count as letters, because a token may hold only a part of such a
// character.
bool is_letter(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x80 || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

TokenText describe(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = text.find_first_not_of(" \t\r\n\v\f");
  if (first == std::string_view::npos) return {.part = kWhiteSpace};
  const char c = text[first];
  const PartOfWord part = is_letter(c) ? kWhole : c >= '0' && c <= '9' ? kNumber : kPunctuation;
  return {.part = part, .joins = first == 0, .open = is_letter(text.back())};
}

TokenKinds by_part_of_word(std::span<const int64_t> ids, const data::Tokenizer& tokenizer) {
  std::unordered_map<int64_t, TokenText> texts;
  const auto text_of = [&](int64_t id) -> const TokenText& {
    const auto [found, added] = texts.try_emplace(id);
    const auto narrow = static_cast<int32_t>(id);
    if (added) found->second = describe(tokenizer.decode_generated(std::span(&narrow, 1)));
    return found->second;
  };
  TokenKinds kinds{"part_of_word",
                   {"whole word", "beginning of a word", "rest of a word", "number", "punctuation",
                    "white space", "special"},
                   {}};
  for (size_t i = 0; i < ids.size(); ++i) {
    const TokenText text = text_of(ids[i]);
    const TokenText next = i + 1 < ids.size() ? text_of(ids[i + 1]) : TokenText{};
    const bool goes_on = text.open && next.part == kWhole && next.joins;
    const bool continues = text.joins && i > 0 && text_of(ids[i - 1]).open;
    kinds.kind.push_back(text.part != kWhole ? text.part : continues ? kRest : goes_on ? kBeginning : kWhole);
  }
  return kinds;
}

// Calls body(begin, end, order) for each run of equal values in ascending order.
template <class Number, class Body>
void for_equal(std::span<const Number> values, const Body& body) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) { return values[a] < values[b]; });
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    body(begin, end, std::span<const size_t>(order).subspan(begin, end - begin));
    begin = end;
  }
}

// Ranks from 0; equal values have their mean rank.
template <class Number>
std::vector<double> ranks_of(std::span<const Number> values) {
  std::vector<double> ranks(values.size());
  for_equal(values, [&](size_t begin, size_t end, std::span<const size_t> members) {
    for (const size_t i : members) ranks[i] = static_cast<double>(begin + end - 1) / 2;
  });
  return ranks;
}

std::optional<double> standard_error(const TokenLosses& tokens, const std::vector<size_t>& members,
                                     double mean) {
  std::map<int64_t, double> deviation;  // by window: S_w - mean n_w
  for (const size_t i : members) deviation[tokens.window[i]] += tokens.nll[i] - mean;
  if (deviation.size() < 2) return std::nullopt;
  double squares = 0;
  for (const auto& [window, sum] : deviation) squares += sum * sum;
  const auto windows = static_cast<double>(deviation.size());
  return std::sqrt(windows / (windows - 1) * squares) / static_cast<double>(members.size());
}

LossesWithin divide(const TokenLosses& all, std::string by, std::vector<std::string> names,
                    const std::vector<int64_t>& kind) {
  LossesWithin within{std::move(by), std::move(names), {}};
  within.kinds.resize(within.names.size());
  for (size_t i = 0; i < kind.size(); ++i) {
    TokenLosses& of_kind = within.kinds.at(kind[i]);
    of_kind.experts.push_back(all.experts[i]);
    of_kind.nll.push_back(all.nll[i]);
    of_kind.window.push_back(all.window[i]);
  }
  return within;
}

// Tenths of the tokens, from the rarest ids to the most frequent ones.
LossesWithin divide_by_frequency(const TokenLosses& all, const std::vector<int64_t>& ids) {
  std::unordered_map<int64_t, int64_t> occurrences;
  for (const int64_t id : ids) ++occurrences[id];
  std::vector<int64_t> frequency;
  for (const int64_t id : ids) frequency.push_back(occurrences.at(id));
  const std::vector<int64_t> group = equal_groups(frequency, kExpertGroups);
  std::vector<std::pair<int64_t, int64_t>> range(kExpertGroups, {0, 0});
  for (size_t i = 0; i < group.size(); ++i) {
    auto& [least, most] = range[group[i]];
    least = least == 0 ? frequency[i] : std::min(least, frequency[i]);
    most = std::max(most, frequency[i]);
  }
  std::vector<std::string> names;
  for (const auto& [least, most] : range)
    names.push_back("occurs " + std::to_string(least) +
                    (most > least ? "-" + std::to_string(most) : std::string()) + " times");
  return divide(all, "frequency", std::move(names), group);
}

ordered_json groups_json(const TokenLosses& tokens, int64_t num_layers) {
  ordered_json json = ordered_json::array();
  const auto layers = static_cast<double>(num_layers);
  for (const ExpertGroup& group : group_by_experts(tokens))
    json.push_back({{"least", static_cast<double>(group.least) / layers},
                    {"most", static_cast<double>(group.most) / layers},
                    {"tokens", group.tokens},
                    {"nll", group.nll},
                    {"standard_error", number_json(group.standard_error)}});
  return json;
}

std::optional<double> mean_spearman(const LossesWithin& within) {
  double sum = 0, tokens = 0;
  for (const TokenLosses& kind : within.kinds) {
    const auto one = spearman(kind);
    if (!one) continue;
    sum += *one * static_cast<double>(kind.nll.size());
    tokens += static_cast<double>(kind.nll.size());
  }
  return tokens > 0 ? std::optional(sum / tokens) : std::nullopt;
}

std::string text_of(const std::optional<double>& value) { return value ? format("%.3f", *value) : "-"; }

// Returns the active experts per token and layer, f64 [T, L] on the host.
Tensor active_experts(const models::HiddenStates& states) {
  std::vector<Tensor> layers;
  for (const ops::RouteOutput& routing : states.routing)
    layers.push_back(routing.gates_TE.ne(0).sum(-1).to(at::kDouble));
  return at::stack(layers, 1).cpu();
}

// Returns the kind of each routed token of a batch of windows, int64 [T], in the order of the batch.
Tensor kinds_of(const TokenKinds& kinds, const TextWindows& windows) {
  const int64_t count = windows.ids_BL.size(0), length = windows.ids_BL.size(1);
  Tensor out = at::empty({count * length}, at::kLong);
  auto* kind = out.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const auto* from = kinds.kind.data() + windows.offset + static_cast<uint64_t>(i) * windows.stride;
    kind = std::copy_n(from, length, kind);
  }
  return out;
}

// Collects the losses and experts of this rank's tokens, in total and by kind.
class ExpertObserver final : public WindowObserver {
 public:
  // `sums_2N` holds the experts and the loss of each token, 0 for tokens of other ranks.
  ExpertObserver(std::vector<KindActivations>& by_kind, const Tensor& sums_2N)
      : by_kind_(by_kind), sums_2N_(sums_2N) {}

  void add(const TextWindows& windows, const models::HiddenStates& states,
           const Tensor& log_probs_T) override {
    const Tensor active_TL = active_experts(states);
    const Tensor place_2T = sums_2N_.narrow(1, static_cast<int64_t>(windows.offset), log_probs_T.numel());
    place_2T[0].copy_(active_TL.sum(1));
    place_2T[1].copy_(log_probs_T.neg());
    for (KindActivations& one : by_kind_) {
      const Tensor kind_T = kinds_of(one.kinds, windows);
      one.tokens_G.index_add_(0, kind_T, at::ones_like(kind_T));
      one.sums_GL.index_add_(0, kind_T, active_TL);
      one.squares_G.index_add_(0, kind_T, active_TL.square().sum(1));
    }
  }

 private:
  std::vector<KindActivations>& by_kind_;
  Tensor sums_2N_;  // f64
};

// Divides the experts and losses of a text's tokens, f64 [2, N].
NllByExperts divide_losses(const EvaluationText& text, const Tensor& sums_2N,
                           const config::ModelConfig& model) {
  const auto values = sums_2N.accessor<double, 2>();
  NllByExperts result{model.num_layers, {}, {}};
  std::vector<int64_t> ids, source_of, all_ids(text.size());
  text.read(0, all_ids);
  int64_t source = 0, window = -1;
  for (const TextSegment& segment : text.segments()) {
    for (uint64_t token = segment.begin; token < segment.last; ++token) {
      if ((token - segment.begin) % static_cast<uint64_t>(model.sequence_length) == 0) ++window;
      const auto n = static_cast<int64_t>(token);
      result.all.experts.push_back(static_cast<int64_t>(values[0][n]));
      result.all.nll.push_back(values[1][n]);
      result.all.window.push_back(window);
      ids.push_back(all_ids[token]);
      source_of.push_back(source);
    }
    ++source;
  }
  if (source > 1) result.within.push_back(divide(result.all, "source", text.source_names(), source_of));
  result.within.push_back(divide_by_frequency(result.all, ids));
  return result;
}

// "spearman" and "groups" over all tokens, and "within" for each division. A "spearman" within kinds is the
// mean over its kinds, weighted by tokens.
ordered_json to_json(const NllByExperts& losses) {
  ordered_json json = {{"spearman", number_json(spearman(losses.all))},
                       {"groups", groups_json(losses.all, losses.num_layers)},
                       {"within", ordered_json::object()}};
  for (const LossesWithin& within : losses.within) {
    ordered_json& part = json["within"][within.by];
    part = {{"spearman", number_json(mean_spearman(within))}, {"kinds", ordered_json::array()}};
    for (size_t i = 0; i < within.kinds.size(); ++i) {
      const TokenLosses& kind = within.kinds[i];
      if (kind.nll.empty()) continue;
      part["kinds"].push_back({{"kind", within.names[i]},
                               {"tokens", kind.nll.size()},
                               {"spearman", number_json(spearman(kind))},
                               {"groups", groups_json(kind, losses.num_layers)}});
    }
  }
  return json;
}

struct KindSummary {
  int64_t tokens;
  double mean, deviation;  // over tokens and layers
};

KindSummary summarize(const KindActivations& activations, int64_t kind) {
  const int64_t tokens = activations.tokens_G[kind].item<int64_t>();
  const auto pairs = static_cast<double>(tokens * activations.sums_GL.size(1));
  const double mean = activations.sums_GL[kind].sum().item<double>() / pairs;
  const double square = activations.squares_G[kind].item<double>() / pairs;
  return {tokens, mean, std::sqrt(std::max(0.0, square - mean * mean))};
}

template <typename Number>
std::vector<Number> values(const Tensor& tensor) {
  const Tensor host = tensor.cpu().contiguous();
  const auto* data = host.const_data_ptr<Number>();
  return {data, data + host.numel()};
}

ordered_json layer_json(const moe::ActivationStatistics& statistics, int64_t layer,
                        const inference::InferenceModel& model) {
  const moe::ActivationSummary summary = statistics.summary(layer);
  const Tensor counts_E = statistics.tokens_per_expert()[layer];
  const auto tokens = static_cast<double>(statistics.tokens());
  ordered_json json = {{"layer", layer},
                       {"mean", summary.mean},
                       {"deviation", summary.deviation},
                       {"imbalance", summary.imbalance},
                       {"dead_experts", summary.dead_experts},
                       {"histogram", values<int64_t>(statistics.histogram()[layer])},
                       {"expert_load", values<double>(counts_E.to(at::kDouble) / tokens)}};
  const std::vector<double> thresholds = model.routing.router->metric("threshold");
  if (!thresholds.empty()) json["threshold"] = thresholds[thresholds.size() > 1 ? layer : 0];
  const Tensor scale = model.model.block(layer).mlp.experts.router_scale;
  if (scale.defined()) json["scale"] = scale.item<double>();
  return json;
}

}  // namespace

std::vector<TokenKinds> find_token_kinds(std::span<const int64_t> ids, const data::Tokenizer& tokenizer,
                                         int64_t sequence_length, std::span<const uint64_t> begins) {
  return {by_frequency(ids), by_position(ids.size(), sequence_length, begins),
          by_part_of_word(ids, tokenizer)};
}

std::vector<int64_t> equal_groups(std::span<const int64_t> values, int64_t groups) {
  std::vector<int64_t> group_of(values.size());
  const auto count = std::ssize(values);
  for_equal(values, [&](size_t begin, size_t end, std::span<const size_t> members) {
    // The group that contains the middle of the run.
    const int64_t group = groups * static_cast<int64_t>(begin + end) / (2 * count);
    for (const size_t i : members) group_of[i] = std::min(group, groups - 1);
  });
  return group_of;
}

std::vector<ExpertGroup> group_by_experts(const TokenLosses& tokens) {
  const std::vector<int64_t> group_of = equal_groups(tokens.experts, kExpertGroups);
  std::vector<std::vector<size_t>> members(kExpertGroups);
  for (size_t i = 0; i < group_of.size(); ++i) members[group_of[i]].push_back(i);
  std::vector<ExpertGroup> groups;
  for (const std::vector<size_t>& own : members) {
    if (own.empty()) continue;
    ExpertGroup group;
    group.least = group.most = tokens.experts[own[0]];
    group.tokens = std::ssize(own);
    for (const size_t i : own) {
      group.least = std::min(group.least, tokens.experts[i]);
      group.most = std::max(group.most, tokens.experts[i]);
      group.nll += tokens.nll[i] / static_cast<double>(own.size());
    }
    group.standard_error = standard_error(tokens, own, group.nll);
    groups.push_back(group);
  }
  return groups;
}

std::optional<double> spearman(const TokenLosses& tokens) {
  const std::vector<double> a = ranks_of(std::span<const int64_t>(tokens.experts));
  const std::vector<double> b = ranks_of(std::span<const double>(tokens.nll));
  const double mean = (static_cast<double>(a.size()) - 1) / 2;  // of either
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean) * (b[i] - mean);
    aa += (a[i] - mean) * (a[i] - mean);
    bb += (b[i] - mean) * (b[i] - mean);
  }
  if (aa == 0 || bb == 0) return std::nullopt;
  return ab / std::sqrt(aa * bb);
}

std::string format_table(const NllByExperts& losses) {
  std::string table =
      format("\n%-28s %8s %10s %10s\n", "experts, mean over layers", "nll", "error", "tokens");
  const auto layers = static_cast<double>(losses.num_layers);
  for (const ExpertGroup& group : group_by_experts(losses.all)) {
    const std::string least = format("%.3g", static_cast<double>(group.least) / layers),
                      most = format("%.3g", static_cast<double>(group.most) / layers);
    const std::string range = least == most ? least : least + "-" + most;
    table += format("%-28s %8.3f %10s %10ld\n", range.c_str(), group.nll,
                    text_of(group.standard_error).c_str(), group.tokens);
  }
  table += "Spearman's rank correlation of experts and nll: " + text_of(spearman(losses.all));
  for (const LossesWithin& within : losses.within)
    table += ", within each " + within.by + " " + text_of(mean_spearman(within));
  return table + "\n";
}

ActivationAnalysis analyze_activations(const inference::InferenceModel& model, const EvaluationText& text,
                                       std::vector<TokenKinds> kinds, int64_t batch_size,
                                       distributed::Collectives& ranks, inference::Watch& watch) {
  if (model.config.model.is_dense())
    throw UsageError("evaluate experts: the model is dense; use a model with experts");
  ActivationAnalysis analysis;
  const int64_t layers = model.config.model.num_layers;
  for (TokenKinds& one : kinds) {
    const auto count = std::ssize(one.names);
    analysis.by_kind.push_back({std::move(one), at::zeros({count}, at::kLong),
                                at::zeros({count, layers}, at::kDouble), at::zeros({count}, at::kDouble)});
  }
  const Tensor sums_2N = at::zeros({2, std::ssize(text)}, at::kDouble);
  ExpertObserver observer(analysis.by_kind, sums_2N);
  analysis.perplexity = measure_perplexity(model, text, batch_size, ranks, watch, {.observer = &observer});
  ranks.all_reduce_sum(sums_2N, "token losses").wait();
  analysis.nll_by_experts = divide_losses(text, sums_2N, model.config.model);
  for (KindActivations& one : analysis.by_kind) {
    const Tensor tokens_G = one.tokens_G.to(at::kDouble);
    for (const Tensor& sums : {tokens_G, one.sums_GL, one.squares_G})  // all are whole numbers
      ranks.all_reduce_sum(sums, "kinds").wait();
    one.tokens_G = tokens_G.to(at::kLong);
  }
  return analysis;
}

ordered_json to_json(const ActivationAnalysis& analysis, const inference::InferenceModel& model) {
  const moe::ActivationStatistics& statistics = analysis.perplexity.activations;
  const moe::ActivationSummary all = statistics.summary();
  ordered_json json = {{"tokens", analysis.perplexity.tokens},
                       {"nll", analysis.perplexity.nll},
                       {"num_experts", model.config.model.num_experts},
                       {"mean", all.mean},
                       {"deviation", all.deviation},
                       {"layers", ordered_json::array()},
                       {"tokens_by", ordered_json::object()},
                       {"nll_by_experts", to_json(analysis.nll_by_experts)}};
  for (int64_t layer = 0; layer < statistics.num_layers(); ++layer)
    json["layers"].push_back(layer_json(statistics, layer, model));
  for (const KindActivations& one : analysis.by_kind) {
    ordered_json& kinds = json["tokens_by"][one.kinds.by] = ordered_json::array();
    for (int64_t kind = 0; kind < one.tokens_G.size(0); ++kind) {
      const KindSummary summary = summarize(one, kind);
      if (summary.tokens == 0) continue;
      kinds.push_back(
          {{"kind", one.kinds.names[kind]},
           {"tokens", summary.tokens},
           {"mean", summary.mean},
           {"deviation", summary.deviation},
           {"layer_means", values<double>(one.sums_GL[kind] / static_cast<double>(summary.tokens))}});
    }
  }
  return json;
}

std::string format_table(const ActivationAnalysis& analysis) {
  std::string table;
  const moe::ActivationStatistics& statistics = analysis.perplexity.activations;
  table += format("%-28s %8s %10s %10s %6s\n", "layer", "experts", "deviation", "imbalance", "dead");
  for (int64_t layer = 0; layer < statistics.num_layers(); ++layer) {
    const moe::ActivationSummary one = statistics.summary(layer);
    table += format("%-28ld %8.3f %10.3f %10.2f %6ld\n", layer, one.mean, one.deviation, one.imbalance,
                    one.dead_experts);
  }
  const moe::ActivationSummary all = statistics.summary();
  table += format("%-28s %8.3f %10.3f\n", "all", all.mean, all.deviation);
  for (const KindActivations& one : analysis.by_kind) {
    table += format("\n%-28s %8s %10s %10s\n", one.kinds.by.c_str(), "experts", "deviation", "tokens");
    for (int64_t kind = 0; kind < one.tokens_G.size(0); ++kind) {
      const KindSummary summary = summarize(one, kind);
      if (summary.tokens == 0) continue;
      table += format("%-28s %8.3f %10.3f %10ld\n", one.kinds.names[kind].c_str(), summary.mean,
                      summary.deviation, summary.tokens);
    }
  }
  return table + format_table(analysis.nll_by_experts);
}

}  // namespace dtopp::eval

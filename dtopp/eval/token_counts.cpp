#include "dtopp/eval/token_counts.h"

#include "dtopp/base/errors.h"
#include "dtopp/base/format.h"
#include "dtopp/base/random.h"
#include "dtopp/moe/router.h"
#include "dtopp/ops/core/host_copy.h"

namespace dtopp::eval {
namespace {

// Assigns tokens to recorded experts instead of choosing them. T is the number of tokens of the forward pass.
class ReplayRouter final : public moe::Router {
 public:
  ReplayRouter(const config::RunConfig& config, std::vector<Tensor> routing_map_LTE)
      : moe::Router(config, routing_map_LTE.at(0).device()), routing_map_LTE_(std::move(routing_map_LTE)) {}

  ops::RouteOutput select(const moe::RouterInput& input) override {
    return route_to(input, routing_map_LTE_.at(input.layer));
  }

 private:
  std::vector<Tensor> routing_map_LTE_;  // per layer, bool [T, E]
};

// Selects given numbers of experts per token: each token's likeliest ones.
class CountedRouter final : public moe::Router {
 public:
  CountedRouter(const config::RunConfig& config, Tensor counts_LT, const at::Device& device)
      : moe::Router(config, device), counts_LT_(std::move(counts_LT)) {}

  ops::RouteOutput select(const moe::RouterInput& input) override {
    return select_likeliest(input, ops::to_device(counts_LT_[input.layer], device()));
  }

 private:
  Tensor counts_LT_;  // int64 on the CPU, at least 1
};

class CountsOfTokens final : public WindowObserver {
 public:
  CountsOfTokens(int64_t layers, int64_t tokens) : counts_LN_(at::zeros({layers, tokens}, at::kDouble)) {}

  void add(const TextWindows& windows, const models::HiddenStates& states,
           const Tensor& /*log_probs_T*/) override {
    for (size_t layer = 0; layer < states.routing.size(); ++layer) {
      const Tensor chosen_T = states.routing[layer].gates_TE.ne(0).sum(-1);
      counts_LN_[static_cast<int64_t>(layer)]
          .narrow(0, static_cast<int64_t>(windows.offset), chosen_T.numel())
          .copy_(chosen_T);
    }
  }
  const Tensor& counts_LN() const { return counts_LN_; }

 private:
  Tensor counts_LN_;  // f64, whole numbers
};

// The columns of the tokens that the model reads, divided as the rule demands.
std::vector<std::vector<int64_t>> groups_of(const std::vector<TextSegment>& segments, CountsRule rule,
                                            int64_t sequence_length) {
  std::vector<std::vector<int64_t>> groups;
  for (const TextSegment& segment : segments) {
    if (groups.empty() || rule == CountsRule::kPermutedSource || rule == CountsRule::kPermutedWindow)
      groups.emplace_back();
    for (uint64_t token = segment.begin; token < segment.last; ++token) {
      const bool begins_window = (token - segment.begin) % static_cast<uint64_t>(sequence_length) == 0;
      if (rule == CountsRule::kPermutedWindow && begins_window && token > segment.begin)
        groups.emplace_back();
      groups.back().push_back(static_cast<int64_t>(token));
    }
  }
  return groups;
}

// Gives every (layer, token) the mean, rounded so that the sum stays.
void make_uniform(const Tensor& counts_LN, const std::vector<std::vector<int64_t>>& groups,
                  const RandomStream& stream) {
  const int64_t layers = counts_LN.size(0);
  auto counts = counts_LN.accessor<int64_t, 2>();
  uint64_t places = 0;
  int64_t total = 0;
  for (const auto& group : groups) {
    places += group.size() * static_cast<uint64_t>(layers);
    for (int64_t layer = 0; layer < layers; ++layer)
      for (const int64_t token : group) total += counts[layer][token];
  }
  if (places == 0) return;
  const int64_t floor = total / static_cast<int64_t>(places);
  const uint64_t raised = static_cast<uint64_t>(total) % places;
  const Permutation order(stream, /*epoch=*/0, places);
  uint64_t place = 0;
  for (int64_t layer = 0; layer < layers; ++layer)
    for (const auto& group : groups)
      for (const int64_t token : group) counts[layer][token] = floor + (order(place++) < raised ? 1 : 0);
}

// Experts are ordered by their probability, which these methods also use for the gates.
void require_counted(const config::RunConfig& config) {
  if (config.model.is_dense()) throw UsageError("--counts: the model is dense; use a model with experts");
  const config::RoutingMethod method = config.routing.method;
  const bool by_probability = config::has_threshold(method) || method == config::RoutingMethod::kTopK;
  if (!by_probability || config.model.zero_experts > 0)
    throw UsageError(
        "--counts: needs experts with probabilities and no zero experts; use routing.method top_k, "
        "top_p, dtop_p or dtop_p_bias");
}

constexpr char kBool[] = "BOOL";

std::string layer_name(int64_t layer) { return format("layer_%02ld", layer); }

void require_routers(const inference::InferenceModel& model) {
  if (model.config.model.is_dense())
    throw UsageError("the checkpoint's model is dense; it has no routing to dump or replay");
}

// Returns bool [count, E] for the tokens first, first + 1, …. Bytes in a file may be other than 0 and 1.
Tensor read_selection(const TensorView& tensor, int64_t first, int64_t count) {
  const int64_t E = tensor.shape.at(1);
  const Tensor bytes_TE = at::empty({count, E}, at::kByte);
  ops::copy_from_bytes(tensor.bytes.subspan(static_cast<size_t>(first * E), static_cast<size_t>(count * E)),
                       bytes_TE);
  return bytes_TE.ne(0);
}

}  // namespace

Tensor redistribute(const Tensor& counts_LN, CountsRule rule, const std::vector<std::vector<int64_t>>& groups,
                    uint64_t seed) {
  Tensor result_LN = counts_LN.clone();
  if (rule == CountsRule::kAsIs) return result_LN;
  const RandomStream stream(seed, "counts of tokens");
  if (rule == CountsRule::kUniform) {
    make_uniform(result_LN, groups, stream);
    return result_LN;
  }
  const auto from = counts_LN.accessor<int64_t, 2>();
  auto to = result_LN.accessor<int64_t, 2>();
  uint64_t epoch = 0;
  for (int64_t layer = 0; layer < counts_LN.size(0); ++layer) {
    for (const auto& group : groups) {
      const Permutation order(stream, epoch++, group.size());
      for (size_t i = 0; i < group.size(); ++i) to[layer][group[i]] = from[layer][group[order(i)]];
    }
  }
  return result_LN;
}

TokenCounts::TokenCounts(const inference::InferenceModel& model, const EvaluationText& text, CountsRule rule,
                         uint64_t seed, int64_t batch_size, distributed::Collectives& ranks,
                         inference::Watch& watch)
    : config_(model.config), device_(model.device()) {
  require_counted(model.config);
  CountsOfTokens own(model.config.model.num_layers, std::ssize(text));
  measure_perplexity(model, text, batch_size, ranks, watch, {.observer = &own});
  ranks.all_reduce_sum(own.counts_LN(), "counts").wait();
  const auto groups = groups_of(text.segments(), rule, model.config.model.sequence_length);
  counts_LN_ = redistribute(own.counts_LN().to(at::kLong), rule, groups, seed);
}

std::shared_ptr<moe::Router> TokenCounts::for_tokens(uint64_t first, int64_t count) const {
  return std::make_shared<CountedRouter>(config_, counts_LN_.narrow(1, static_cast<int64_t>(first), count),
                                         device_);
}

RoutingDump::RoutingDump(const inference::InferenceModel& model, int64_t num_tokens) {
  require_routers(model);
  const config::ModelConfig& config = model.config.model;
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    routing_map_LTE_.push_back(at::zeros({num_tokens, config.num_experts}, at::kBool));
}

void RoutingDump::add(const TextWindows& windows, const models::HiddenStates& states,
                      const Tensor& /*log_probs_T*/) {
  for (size_t layer = 0; layer < routing_map_LTE_.size(); ++layer) {
    const Tensor chosen_TE = states.routing.at(layer).gates_TE.ne(0);
    routing_map_LTE_[layer]
        .narrow(0, static_cast<int64_t>(windows.offset), chosen_TE.size(0))
        .copy_(chosen_TE);
  }
}

void RoutingDump::write(const fs::path& path) const {
  std::vector<TensorSource> tensors;
  for (size_t layer = 0; layer < routing_map_LTE_.size(); ++layer) {
    const Tensor& routing_map_TE = routing_map_LTE_[layer];
    const auto* bytes = static_cast<const std::byte*>(routing_map_TE.const_data_ptr());
    tensors.emplace_back(layer_name(static_cast<int64_t>(layer)), kBool, routing_map_TE.sizes().vec(),
                         std::span(bytes, static_cast<size_t>(routing_map_TE.numel())));
  }
  write_file_atomically(path, [&](OutputFile& file) { write_safetensors(file, tensors); });
}

RoutingReplay::RoutingReplay(const fs::path& path, const inference::InferenceModel& model, int64_t num_tokens)
    : file_(path), config_(model.config), device_(model.device()) {
  require_routers(model);
  if (!config::has_router(model.config.routing, 0))
    throw UsageError(
        "the checkpoint's model routes by token id (routing.method hash or hash_layers); its gates cannot be "
        "replayed");
  if (model.config.model.zero_experts > 0)
    throw UsageError(
        "the checkpoint's model has zero experts, whose gates a routing file does not hold; its "
        "routing cannot be replayed");
  const std::vector<int64_t> shape = {num_tokens, model.config.model.num_experts};
  for (int64_t layer = 0; layer < model.config.model.num_layers; ++layer) {
    const TensorView* tensor = layers_.emplace_back(file_.find(layer_name(layer)));
    if (tensor == nullptr || tensor->dtype != kBool || tensor->shape != shape)
      throw UsageError(
          path, ": ", layer_name(layer),
          (tensor == nullptr ? " is missing"
                             : concat(" is ", tensor->dtype, " ", c10::str(at::IntArrayRef(tensor->shape)))),
          ", but this text and model need BOOL ", c10::str(at::IntArrayRef(shape)),
          "; use a file that evaluate text --dump-routing wrote for the same text");
  }
  if (file_.tensors().size() != layers_.size())
    throw UsageError(path, ": holds ", file_.tensors().size(), " tensors, but the model has ", layers_.size(),
                     " layers");
}

std::shared_ptr<moe::Router> RoutingReplay::for_tokens(uint64_t first, int64_t count) const {
  std::vector<Tensor> maps_LTE;
  for (const TensorView* layer : layers_)
    maps_LTE.push_back(ops::to_device(read_selection(*layer, static_cast<int64_t>(first), count), device_));
  return std::make_shared<ReplayRouter>(config_, std::move(maps_LTE));
}

}  // namespace dtopp::eval

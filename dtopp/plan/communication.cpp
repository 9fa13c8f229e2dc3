#include "dtopp/plan/communication.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "dtopp/distributed/bucketed_reducer.h"
#include "dtopp/moe/expert_bias.h"
#include "dtopp/moe/expert_normalization.h"
#include "dtopp/ops/route/cumulative_prob_bins.h"
#include "dtopp/ops/route/logit_histogram.h"

namespace dtopp::plan {
namespace {

constexpr double kFloatBytes = 4;
constexpr double kDoubleBytes = 8;
constexpr double kCountBytes = 16;  // two int64

// A group of ranks that communicate; `local` of them are on each of their nodes.
struct Group {
  double size, local;
};

// Bytes sent if each rank sends `part` to every other rank, wherever it is.
SentBytes to_each(const Group& group, double part) {
  return {(group.local - 1) * part, (group.size - group.local) * part};
}

// Bytes sent if each rank sends every other rank its part of `bytes`.
SentBytes exchange(const Group& group, double bytes) { return to_each(group, bytes / group.size); }

// EDP ranks exchange within a node first, then with the ranks at their place on other nodes.
struct EdpGroups {
  Group in_node, across_nodes;
};

EdpGroups edp_groups(const distributed::ParallelDims& dims) {
  const distributed::ParallelDims nested = dims.with_nested_nodes();
  const auto here = static_cast<double>(nested.local_edp_size()), nodes = static_cast<double>(nested.nodes);
  // Several nodes may count as one; their ranks are still on different nodes.
  const double local = here * nodes / static_cast<double>(dims.nodes);
  return {{here, std::min(here, local)}, {nodes, 1}};
}

// An all-reduce sends its bytes twice: as partial sums and as results.
SentBytes all_reduce(const Group& group, double bytes) { return exchange(group, 2 * bytes); }

// How the micro-batches of a step are distributed.
struct Shares {
  double micro_batches;  // of the mean rank
  double micro_steps;    // of the mean EP group
  int64_t most_micro_steps;
};

// Each EP group owns an aligned range of micro-steps (distributed/tree_sum.h).
Shares share_out(const config::TrainingConfig& training, const distributed::ParallelDims& dims) {
  const int64_t leaves = training.global_batch_size / training.micro_batch_size;
  const int64_t micro_steps = (leaves + dims.ep_size - 1) / dims.ep_size;
  int64_t most = 1;
  while (most * dims.edp_size() < micro_steps) most *= 2;
  return {static_cast<double>(leaves) / static_cast<double>(dims.world_size),
          static_cast<double>(micro_steps) / static_cast<double>(dims.edp_size()),
          std::min(most, micro_steps)};
}

// Numbers of parameter elements.
struct ParameterSizes {
  double dense = 0, experts = 0;
};

// The largest bucket's share of the elements that a rank holds (distributed/bucketed_reducer.h).
double bucket_share(const models::Model& model, int64_t expert_parallel) {
  int64_t held = 0, largest = 0;
  for (const parameters::ParameterSpec& spec : model.parameters) {
    const int64_t count =
        spec.count() / (spec.role == parameters::ParameterRole::kExpert ? expert_parallel : 1);
    held += count;
    largest = std::max(largest, count);
  }
  return static_cast<double>(std::min(held, std::max(largest, distributed::bucket_elements(held)))) /
         static_cast<double>(held);
}

ParameterSizes parameter_sizes(const models::Model& model) {
  ParameterSizes sizes;
  for (const parameters::ParameterSpec& spec : model.parameters) {
    const auto count = static_cast<double>(spec.count());
    const bool expert = spec.role == parameters::ParameterRole::kExpert;
    (expert ? sizes.experts : sizes.dense) += count;
  }
  return sizes;
}

// The bytes that a rank sends to each other rank of a group in the all-gathers of all parameters. Parameters
// of one bucket and type share a message (distributed/bucketed_reducer.h). widths[i]: bytes per
// element.
double gathered_bytes(const std::vector<distributed::Shards>& shards, const std::vector<int64_t>& widths) {
  int64_t bytes = 0;
  for (const std::vector<size_t>& bucket : distributed::divide_into_buckets(shards)) {
    std::map<int64_t, std::vector<size_t>> by_width;
    for (const size_t i : bucket) by_width[widths[i]].push_back(i);
    for (const auto& [width, parameters] : by_width)
      bytes += width * distributed::gathered_elements(shards, parameters);
  }
  return static_cast<double>(bytes);
}

// The bytes of the all-gathers of updated parameters, as the mean over the groups of ranks.
SentBytes plan_all_gather(const models::Model& model, const distributed::ParallelDims& dims, int64_t width) {
  const distributed::ParallelDims nested = dims.with_nested_nodes();
  std::vector<distributed::ShardLayout> layouts;
  std::vector<int64_t> widths, dense_widths;
  std::vector<distributed::Shards> in_ep_group;
  for (const parameters::ParameterSpec& spec : model.parameters) {
    widths.push_back(spec.compute_precision() ? width : static_cast<int64_t>(kFloatBytes));
    const auto index = static_cast<int64_t>(layouts.size());
    const auto& layout = layouts.emplace_back(spec.count(), spec.num_experts(), index, nested);
    if (spec.role == parameters::ParameterRole::kExpert) continue;
    in_ep_group.push_back(layout.shards_in_ep_group());
    dense_widths.push_back(widths.back());
  }
  const auto bytes_of = [&](int64_t rank, auto shards_of) {
    std::vector<distributed::Shards> shards;
    for (const distributed::ShardLayout& layout : layouts) shards.push_back((layout.*shards_of)(rank));
    return gathered_bytes(shards, widths);
  };
  double in_node = 0, across_nodes = 0;
  const int64_t here = nested.local_edp_size();
  for (int64_t ep_rank = 0; ep_rank < nested.ep_size; ++ep_rank) {
    for (int64_t node = 0; node < nested.nodes; ++node)
      in_node += bytes_of(nested.rank(ep_rank, node * here), &distributed::ShardLayout::shards_in_node);
    for (int64_t place = 0; place < here; ++place)
      across_nodes += bytes_of(nested.rank(ep_rank, place), &distributed::ShardLayout::shards_across_nodes);
  }
  const auto degree = static_cast<double>(nested.ep_size);
  const EdpGroups groups = edp_groups(dims);
  return to_each(groups.in_node, in_node / (degree * groups.across_nodes.size)) +
         to_each(groups.across_nodes, across_nodes / (degree * groups.in_node.size)) +
         to_each({degree, degree}, gathered_bytes(in_ep_group, dense_widths));
}

// The approximate number of values in train/step.h: losses per micro-batch, gradient norms per chunk
// (distributed/shard_layout.h), flags, the largest number of token-expert pairs per rank and
// layer, tokens per expert, sums of logits, and the histograms of cumulative probabilities and of biases.
double count_step_numbers(const config::RunConfig& config, const models::Model& model,
                          const distributed::ParallelDims& dims) {
  constexpr int64_t kLosses = 6, kFlags = 2, kTokenSums = 2;
  const int64_t layers = model.num_routed_layers;
  int64_t chunks = 0;
  for (const parameters::ParameterSpec& spec : model.parameters)
    chunks += distributed::ShardLayout(spec.count(), spec.num_experts(), /*index=*/0, {}).num_chunks();
  int64_t count =
      kLosses * (config.training.global_batch_size / config.training.micro_batch_size) + chunks + kFlags;
  const bool has_bias = config.routing.method == config::RoutingMethod::kDTopPBias ||
                        config.routing.method == config::RoutingMethod::kTopKBias;
  const bool by_quantile = has_bias && config.routing.bias_rule == config::BiasRule::kQuantile;
  if (layers > 0 && config::has_controller(config.routing.method))
    count += (ops::kCumulativeProbBins + (config.model.zero_experts > 0 ? 1 : 0) + (has_bias ? 2 : 0)) *
             (config.routing.scope == config::ThresholdScope::kLayer || by_quantile ? layers : 1);
  if (by_quantile) count += layers * config.model.num_experts * moe::ExpertBias::kBins;
  if (layers > 0 && config.routing.method == config::RoutingMethod::kExpertThreshold)
    count += layers * config.model.num_experts * ops::kLogitBins;
  if (layers > 0)
    count += layers * (dims.world_size + moe::logit_sums_size(config)) + kTokenSums +
             layers * (2 * config.model.num_experts + 1);
  return static_cast<double>(count);
}

// Adds the bytes of rows that are sent to other ranks' experts and back.
void add_rows(const config::RunConfig& config, const models::Model& model, const Group& ep_group,
              const Shares& shares, double width, Communication& communication) {
  const auto layers = static_cast<double>(model.num_routed_layers);
  const double tokens = shares.micro_batches * static_cast<double>(config.training.micro_batch_size) *
                        static_cast<double>(model.tokens_per_sample);
  const double row = static_cast<double>(config.model.hidden_size) * width;
  const double gates = static_cast<double>(config.model.num_experts) / ep_group.size * kFloatBytes;
  const double rows = layers * tokens * communication.rows_per_token;
  // In the forward pass, x and the gates are sent, and a partial sum over experts returns. In the backward
  // pass, their gradients take the opposite ways. First, ranks exchange the numbers of rows and pairs.
  const double counts = layers * shares.micro_steps * ep_group.size * kCountBytes;
  communication.dispatch = exchange(ep_group, 2 * rows * (row + gates) + counts);
  communication.combine = exchange(ep_group, 2 * rows * row);
}

}  // namespace

double expected_ranks(int64_t experts, int64_t ranks, double active) {
  const int64_t others = experts - experts / ranks;
  const auto none = [&](int64_t drawn) {  // probability that none of a rank's experts is among the drawn ones
    double probability = 1;
    for (int64_t i = 0; i < drawn; ++i)
      probability *= static_cast<double>(std::max<int64_t>(0, others - i)) / static_cast<double>(experts - i);
    return probability;
  };
  const auto whole = static_cast<int64_t>(active);
  const double missed =
      std::lerp(none(whole), none(std::min(whole + 1, experts)), active - static_cast<double>(whole));
  return static_cast<double>(ranks) * (1 - missed);
}

Communication plan_communication(const config::RunConfig& config, const models::Model& model,
                                 const distributed::ParallelDims& dims, double active_experts,
                                 uint64_t width) {
  const auto element = static_cast<double>(width);
  const auto degree = static_cast<double>(dims.ep_size);
  const Group all = {static_cast<double>(dims.world_size), static_cast<double>(dims.node_size())};
  const Group ep_group = {degree, degree};
  const Shares shares = share_out(config.training, dims);
  const ParameterSizes sizes = parameter_sizes(model);

  Communication result;
  result.micro_steps = shares.most_micro_steps;
  result.busiest_share = static_cast<double>(shares.most_micro_steps) / shares.micro_batches;
  result.bucket_share = bucket_share(model, dims.ep_size);
  // The gradient sums of a rank cover its part of the dense parameters and its experts. Afterwards
  // it sends the same part of the updated parameters to the other ranks.
  const double ep_sums = config.parallel.reproducible ? shares.micro_steps : 1;
  result.ep_gradients = exchange(ep_group, ep_sums * sizes.dense * kFloatBytes);
  const EdpGroups edp = edp_groups(dims);
  const double gradients = (sizes.dense + sizes.experts) / degree * kFloatBytes;
  result.edp_gradients =
      exchange(edp.in_node, gradients) + exchange(edp.across_nodes, gradients / edp.in_node.size);
  result.parameters = plan_all_gather(model, dims, static_cast<int64_t>(width));
  if (!config.model.is_dense()) {
    result.rows_per_token = expected_ranks(config.model.num_experts, dims.ep_size, active_experts);
    add_rows(config, model, ep_group, shares, element, result);
  }
  result.step = all_reduce(all, kDoubleBytes * count_step_numbers(config, model, dims));
  return result;
}

std::vector<CollectiveBytes> by_collective(const Communication& communication) {
  const auto rounded = [](const char* name, const SentBytes& sent) {
    return CollectiveBytes{name, models::checked_round(sent.inside), models::checked_round(sent.between)};
  };
  return {rounded("reduce_scatter", communication.ep_gradients + communication.edp_gradients),
          rounded("gather", communication.parameters), rounded("dispatch", communication.dispatch),
          rounded("combine", communication.combine), rounded("step", communication.step)};
}

}  // namespace dtopp::plan

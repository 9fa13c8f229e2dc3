// Measures how much of the communication between two ranks overlaps with computation.
//
// A small model is trained by two threads with one core each. Their collectives take as long as on a wire of
// a given rate and latency (Wire). Cases run with the trainer's overlap and without it, where every
// collective is waited for at once. The prediction of `dtopp plan` for these bytes on such a wire is printed
// beside them. The output is one JSON line per case.
//
// The rate is chosen so that a step's bytes take `wire_share` of a step without a wire. Cases take turns in
// one run. The exposed time of a step is the time beyond that of a step without a wire in the same round; the
// median over rounds counts.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "benchmarks/delayed_collectives.h"
#include "dtopp/base/random.h"
#include "dtopp/models/make_model.h"
#include "dtopp/plan/plan.h"
#include "dtopp/train/trainer.h"
#include "tests/distributed/rank_threads.h"

namespace {

using namespace dtopp;
using Seconds = std::chrono::duration<double>;

struct Options {
  int64_t rounds = 10;
  int64_t vocab_size = 1024, micro_batches = 1, expert_parallel = 1;
  std::vector<double> wire_shares = {0.25, 0.5, 1, 2};
  std::vector<double> latencies_ms = {0, 5};
};

constexpr int64_t kRanks = 2;
// Steps of a case per round: one that gathers the remains of the previous case, then the measured ones.
constexpr int64_t kFirstSteps = 1, kMeasuredSteps = 2;

// A wire, and whether communication overlaps with computation.
struct Setting {
  double wire_share = 0, latency_ms = 0;  // both 0: no wire
  bool overlap = true;
  double bytes_per_second = std::numeric_limits<double>::infinity();
};

// Rank 0's measurements over the rounds of a setting.
struct Measured {
  std::vector<double> step_seconds{};                     // mean per round
  std::map<std::string, distributed::Traffic> traffic{};  // over all measured steps

  double per_step(double sum) const {
    return sum / static_cast<double>(step_seconds.size()) / static_cast<double>(kMeasuredSteps);
  }
  double bytes() const {
    double sum = 0;
    for (const auto& [what, traffic] : traffic) sum += static_cast<double>(traffic.bytes);
    return per_step(sum);
  }
};

double rounded(double value) { return std::round(value * 1e4) / 1e4; }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// The wire, counts and overlap of one rank's collectives.
struct Conditions {
  std::shared_ptr<distributed::Wire> wire = std::make_shared<distributed::Wire>(Seconds(0), 1);
  std::shared_ptr<distributed::CollectiveCounts> counts = std::make_shared<distributed::CollectiveCounts>();
  bool overlap = true;

  void become(const Setting& setting) {
    wire->set(Seconds(setting.latency_ms / 1000), setting.bytes_per_second);
    overlap = setting.overlap;
  }
};

// Without overlap, the caller waits for each collective at once.
class ConditionedCollectives final : public distributed::Collectives {
 public:
  ConditionedCollectives(std::unique_ptr<distributed::Collectives> inner, const Conditions& conditions)
      : distributed::Collectives(inner->rank(), inner->size()),
        inner_(std::make_unique<distributed::DelayedCollectives>(std::move(inner), conditions.wire),
               conditions.counts),
        conditions_(conditions) {}
  distributed::Pending start(const distributed::Collective& collective) override {
    distributed::Pending pending = inner_.start(collective);
    if (!conditions_.overlap) pending.wait();
    return pending;
  }

 private:
  distributed::CountingCollectives inner_;
  const Conditions& conditions_;
};

distributed::ProcessGroups make_conditioned_groups(const c10::intrusive_ptr<c10d::Store>& store, int64_t rank,
                                                   int64_t ep_size, const Conditions& conditions) {
  const auto group = [&](const char* name,
                         const std::vector<int64_t>& ranks) -> std::shared_ptr<distributed::Collectives> {
    std::unique_ptr<distributed::Collectives> group =
        distributed::make_gloo_collectives(store, name, rank, ranks, distributed::on_loopback());
    if (ranks.size() == 1) return group;
    return std::make_shared<ConditionedCollectives>(std::move(group), conditions);
  };
  distributed::ProcessGroups groups;
  groups.traffic = conditions.counts;
  groups.world = group("world", distributed::all_ranks(kRanks));
  groups.edp_intra_node = group("edp_intra_node", distributed::edp_ranks(rank, ep_size, kRanks));
  groups.ep = group("ep", distributed::ep_ranks(rank, ep_size));
  groups.ep_dispatch = group("ep_dispatch", distributed::ep_ranks(rank, ep_size));
  return groups;
}

config::RunConfig config_of(const Options& options) {
  config::RunConfig config;
  config.model.hidden_size = 256;
  config.model.num_layers = 8;
  config.model.num_heads = 4;
  config.model.ffn_hidden_size = 128;
  config.model.num_experts = 16;
  config.model.vocab_size = options.vocab_size;
  config.model.sequence_length = 256;
  config.routing.experts = {4};
  config.training.global_batch_size = 2 * kRanks * options.micro_batches;
  config.training.micro_batch_size = 2;
  config.training.steps = 1000;
  config.training.precision = config::Precision::kFp32;
  return config;
}

struct RandomTokens : models::Dataset {
  explicit RandomTokens(const config::ModelConfig& model) : model(model) {}
  models::Batch read(uint64_t position, int64_t count) const override {
    const RandomStream stream(7, "tokens");
    const int64_t width = model.sequence_length + 1;
    const at::Tensor tokens = at::empty({count, width}, at::kLong);
    for (int64_t i = 0; i < tokens.numel(); ++i) {
      const auto index = position * static_cast<uint64_t>(width) + static_cast<uint64_t>(i);
      tokens.mutable_data_ptr<int64_t>()[i] = stream.bits(index)[0] % model.vocab_size;
    }
    return models::Batch{position, {{"tokens", tokens}}};
  }
  config::ModelConfig model;
};

models::TrainingData random_tokens(const config::RunConfig& config) {
  models::TrainingData data;
  data.training = std::make_shared<RandomTokens>(config.model);
  return data;
}

double step_seconds(train::Trainer& trainer) {
  trainer.step({});
  return trainer.next_result(0).value().seconds;
}

void measure_setting(train::Trainer& trainer, const distributed::CollectiveCounts& counts,
                     Measured& measured) {
  for (int64_t i = 0; i < kFirstSteps; ++i) step_seconds(trainer);
  const std::map<std::string, distributed::Traffic> before = counts.traffic();
  double seconds = 0;
  for (int64_t i = 0; i < kMeasuredSteps; ++i) seconds += step_seconds(trainer);
  measured.step_seconds.push_back(seconds / kMeasuredSteps);
  for (const auto& [what, traffic] : counts.traffic()) {
    distributed::Traffic& sum = measured.traffic[what];
    sum.bytes += traffic.bytes;
    sum.seconds += traffic.seconds;
    if (const auto earlier = before.find(what); earlier != before.end()) {
      sum.bytes -= earlier->second.bytes;
      sum.seconds -= earlier->second.seconds;
    }
  }
}

std::vector<Measured> measure(const Options& options, const config::RunConfig& config,
                              const std::vector<Setting>& settings) {
  std::vector<Measured> measured(settings.size());
  distributed::run_ranks(kRanks, [&](int64_t rank, const c10::intrusive_ptr<c10d::Store>& store) {
    at::set_num_threads(1);
    Conditions conditions;
    conditions.become({});
    train::Trainer trainer(config, models::make_model(config), random_tokens(config), at::kFloat,
                           make_conditioned_groups(store, rank, options.expert_parallel, conditions));
    trainer.initialize();
    for (int64_t i = 0; i < 3; ++i) step_seconds(trainer);
    std::vector<Measured> of_other_rank(settings.size());
    for (int64_t round = 0; round < options.rounds; ++round) {
      for (size_t i = 0; i < settings.size(); ++i) {
        conditions.become(settings[i]);
        measure_setting(trainer, *conditions.counts, (rank == 0 ? measured : of_other_rank)[i]);
      }
    }
  });
  return measured;
}

// The exposed seconds that the plan predicts for this wire and a step of this computing time.
double planned_exposed(const Options& options, const config::RunConfig& config, const Setting& setting,
                       double compute) {
  const plan::Plan plan = plan::make_plan(config, {.world_size = kRanks, .ep_size = options.expert_parallel});
  device::DeviceRates rates;
  rates.fp32_flops = static_cast<double>(plan.flops_per_token) * static_cast<double>(plan.tokens_per_step) /
                     kRanks / compute / device::AssumedShares::kCompute;
  rates.inside = setting.bytes_per_second / device::AssumedShares::kInside;
  rates.between = setting.bytes_per_second / device::AssumedShares::kBetween;
  rates.memory = 1e30;  // the measured computing time includes the update
  const plan::StepTime time = plan::plan_step_time(plan, rates);
  return time.gradients + time.parameters + time.rows;
}

void print(const Options& options, const config::RunConfig& config, const Setting& setting,
           const Measured& measured, const Measured& without_wire) {
  const double compute = median(without_wire.step_seconds);
  std::vector<double> exposed = measured.step_seconds;
  for (size_t round = 0; round < exposed.size(); ++round) exposed[round] -= without_wire.step_seconds[round];
  const double wire = measured.bytes() / setting.bytes_per_second;
  nlohmann::ordered_json waited;
  for (const auto& [what, traffic] : measured.traffic)
    if (traffic.bytes > 0) waited[what] = rounded(measured.per_step(traffic.seconds));
  const nlohmann::ordered_json line = {
      {"expert_parallel", options.expert_parallel},
      {"vocab_size", options.vocab_size},
      {"micro_batches", options.micro_batches},
      {"wire_share", setting.wire_share},
      {"latency_ms", setting.latency_ms},
      {"overlap", setting.overlap},
      {"mbit_per_second", rounded(setting.bytes_per_second * 8e-6)},
      {"bytes", measured.bytes()},
      {"seconds_without_wire", rounded(compute)},
      {"step_seconds", rounded(median(measured.step_seconds))},
      {"wire_seconds", rounded(wire)},
      {"exposed_seconds", rounded(median(exposed))},
      {"exposed_share", rounded(median(exposed) / wire)},
      {"planned_exposed_seconds", rounded(planned_exposed(options, config, setting, compute))},
      {"waited_seconds", waited}};
  std::printf("%s\n", line.dump().c_str());
}

// The first setting has no wire.
std::vector<Setting> settings_of(const Options& options, double bytes_per_step_second) {
  std::vector<Setting> settings = {{}};
  for (const double share : options.wire_shares) {
    for (const double latency : options.latencies_ms) {
      for (const bool overlap : {true, false})
        settings.push_back({share, latency, overlap, bytes_per_step_second / share});
    }
  }
  return settings;
}

void measure_all(const Options& options) {
  const config::RunConfig config = config_of(options);
  Options few = options;
  few.rounds = 3;
  const Measured first = measure(few, config, {{}})[0];
  const std::vector<Setting> settings = settings_of(options, first.bytes() / median(first.step_seconds));
  const std::vector<Measured> measured = measure(options, config, settings);
  for (size_t i = 1; i < settings.size(); ++i) print(options, config, settings[i], measured[i], measured[0]);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("How much of what two ranks send each other computation hides");
  app.add_option("--rounds", options.rounds)->capture_default_str();
  app.add_option("--vocab-size", options.vocab_size)->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches, "of a rank and step")->capture_default_str();
  app.add_option("--expert-parallel", options.expert_parallel)->check(CLI::IsMember({1, 2}));
  app.add_option("--wire-share", options.wire_shares, "seconds of the wire over those of a step")
      ->delimiter(',');
  app.add_option("--latency-ms", options.latencies_ms)->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  measure_all(options);
}

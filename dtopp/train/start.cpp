#include "dtopp/train/start.h"

#include <sstream>

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <ATen/Version.h>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/config/config.h"
#include "dtopp/device/device.h"
#include "dtopp/models/make_model.h"
#include "dtopp/moe/make_router.h"
#include "dtopp/ops/core/host_copy.h"
#include "dtopp/ops/core/simd.h"
#include "dtopp/ops/gemm/linear.h"
#include "dtopp/ops/moe_ffn/cuda/fused/expert_gemm.h"
#include "dtopp/optim/optimizer.h"

namespace dtopp::train {
namespace {

using parameters::ParameterRole;
using parameters::ParameterSpec;
using Shapes = std::map<std::string, std::vector<int64_t>>;

std::string describe(const Shapes& shapes, const std::string& name) {
  const auto found = shapes.find(name);
  return found == shapes.end() ? "none" : c10::str(at::IntArrayRef(found->second));
}

bool is_down(const ParameterSpec& spec) { return spec.name.ends_with("down_proj"); }

// Everything by which a processor selects kernels.
std::string kernels_on(const at::Device& device) {
  if (!device.is_cpu()) {
    const device::DeviceFacts facts = device::device_facts(device);
    return facts.name + " (fused kernels: " + ops::fused_kernels_text(ops::fused_kernels(facts.capability)) +
           ")";
  }
  constexpr std::array<const char*, 3> kLoops = {"baseline", "AVX2", "AVX512"};
  return std::string("a CPU (torch: ") + at::get_cpu_capability() +
         ", dtopp: " + kLoops[static_cast<size_t>(ops::widest_simd())] + (ops::has_amx() ? ", AMX)" : ")");
}

// Identifies a file, as opposed to a copy of it, on all hosts that share its file system; empty if it is
// missing.
std::string identity_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return "";
  return concat(status.st_ino, " ", status.st_ctim.tv_sec, " ", status.st_ctim.tv_nsec);
}

// Part `part` of `parts`: the largest file first, each to the part with the fewest bytes.
ManifestFiles part_of(const ManifestFiles& files, size_t part, size_t parts) {
  std::vector<ManifestFiles::const_iterator> by_size;
  for (auto file = files.begin(); file != files.end(); ++file) by_size.push_back(file);
  std::ranges::stable_sort(by_size, std::greater(), [](const auto& file) { return file->second.size; });
  std::vector<uint64_t> bytes(parts);
  ManifestFiles mine;
  for (const auto& file : by_size) {
    const auto least = std::ranges::min_element(bytes);
    *least += file->second.size;
    if (least - bytes.begin() == static_cast<std::ptrdiff_t>(part)) mine.insert(*file);
  }
  return mine;
}

// The first letter of an error that one rank sends to the others. Damage on any rank comes first.
constexpr char kDamaged = 'd', kUnreadable = 'u';

// Verifies this rank's part of the checkpoint. Returns the same letter and error message on all ranks; empty:
// no error. Sets `shares` if this rank reads the same files as rank 0; other ranks verify nothing here.
std::string verify_part(const fs::path& path, checkpoint::CheckpointUse use, distributed::Collectives& ranks,
                        bool& shares) {
  const auto identities = distributed::gather_bytes(ranks, identity_of(path / kManifestName), "verify");
  shares = identities[ranks.rank()] == identities.front();
  const auto before = std::count(identities.begin(), identities.begin() + ranks.rank(), identities.front());
  const auto all = std::ranges::count(identities, identities.front());
  std::string wrong;
  try {
    if (shares) {
      ManifestFiles files = read_manifest(path, checkpoint::kCheckpointFormat).files;
      checkpoint::keep_files_for(use, files);
      verify_content(path, part_of(files, static_cast<size_t>(before), static_cast<size_t>(all)));
    }
  } catch (const DataError& error) {
    wrong = (may_pass(error) ? kUnreadable : kDamaged) + std::string(error.what());
  }
  for (const std::string& other : distributed::gather_bytes(ranks, wrong, "verify"))
    if (wrong.empty() || (!other.empty() && other < wrong)) wrong = other;
  return wrong;
}

// Ranks with copies of their own could hold another run's checkpoint of the same step.
void require_same_copy(const checkpoint::Checkpoint& checkpoint, distributed::Collectives& ranks) {
  if (const auto difference = distributed::find_difference(checkpoint.hash(), ranks))
    throw distributed::RanksDiffer(ExitStatus::kCheckpoint, difference->name(), " has another ",
                                   checkpoint.path(), " than rank 0; copy the folder of rank 0 there");
}

// Opens on all ranks the checkpoint that find(verify) returns on rank 0.
template <class Find>
std::optional<checkpoint::Checkpoint> open_together(distributed::Collectives& ranks,
                                                    checkpoint::CheckpointUse use, const Find& find) {
  if (ranks.size() == 1) return find(verify_content);
  const auto share_path = [&](const fs::path& path) {
    return fs::path(distributed::broadcast_bytes(ranks, path.string(), /*root=*/0, "verify"));
  };
  bool shares = true;
  if (ranks.rank() == 0) {
    std::optional<checkpoint::Checkpoint> found = find([&](const fs::path& path, const ManifestFiles&) {
      share_path(path);
      const std::string wrong = verify_part(path, use, ranks, shares);
      if (wrong.starts_with(kUnreadable)) throw checkpoint::UnreadableCheckpoint(wrong.substr(1));
      if (!wrong.empty()) throw DataError(wrong.substr(1));
    });
    share_path({});  // nothing more to verify
    share_path(found ? found->path() : fs::path());
    if (found) require_same_copy(*found, ranks);
    return found;
  }
  for (fs::path path = share_path({}); !path.empty(); path = share_path({}))
    verify_part(path, use, ranks, shares);
  const fs::path path = share_path({});
  if (path.empty()) return std::nullopt;
  std::optional<checkpoint::Checkpoint> checkpoint(
      std::in_place, path, use, shares ? checkpoint::VerifyFiles(verify_sizes) : verify_content);
  require_same_copy(*checkpoint, ranks);
  return checkpoint;
}

// Whether a key may differ from the run that a cool-down continues.
bool may_change(const std::string& key) {
  return !config::affects_result(key) || key.starts_with("optimizer.") || key.starts_with("data.") ||
         key == "training.steps" || key == "training.initialize_from" || key == "training.cooldown_from";
}

void require_same_trunk(const checkpoint::Checkpoint& checkpoint, const config::RunConfig& there,
                        const config::RunConfig& here) {
  std::vector<std::string> keys = config::differing_keys(here, there);
  std::erase_if(keys, may_change);
  const std::string what = concat("training.cooldown_from: ", checkpoint.path());
  if (!keys.empty())
    throw UsageError(what, " has another configuration (different: ", joined(keys, ", "),
                     "); use the values of that run");
  if (checkpoint.state().step >= here.training.steps)
    throw UsageError(what, " already has ", checkpoint.state().step, " steps; set training.steps above ",
                     checkpoint.state().step);
}

void warn_of_other_past(const checkpoint::Checkpoint& checkpoint, const config::RunConfig& there,
                        const config::RunConfig& here, const ConsoleLog& log) {
  const int64_t step = checkpoint.state().step;
  // Six digits: schedules that agree may differ in the last bits.
  const auto rate = [&](const config::RunConfig& config) {
    return format("%.6g", optim::learning_rate(config.optimizer, step, config.training.steps));
  };
  if (rate(there) != rate(here))
    log.warning(concat("step ", step, " had a learning rate of ", rate(there), ", but this schedule gives ",
                       rate(here), "; choose schedules that agree at this step"));
}

// With another tokenizer, token ids mean other words than those the parameters were trained on.
bool has_tokenizer(const checkpoint::Checkpoint& checkpoint, const std::string& tokenizer_json) {
  const std::string there = read_file(checkpoint.tokenizer_path());
  if (there == tokenizer_json || tokenizer_json.empty()) return there == tokenizer_json;
  return parse_json(there, checkpoint.tokenizer_path().string()) ==
         parse_json(tokenizer_json, "data.train: tokenizer.json");
}

void warn_of_other_tokenizer(const checkpoint::Checkpoint& checkpoint, const models::TrainingData& data,
                             const ConsoleLog& log) {
  if (!checkpoint.has_tokenizer() || data.tokenizer_json.empty()) return;
  if (has_tokenizer(checkpoint, data.tokenizer_json)) return;
  log.warning(concat("data.train was prepared with another tokenizer than that of ", checkpoint.path(),
                     "; prepare it with --tokenizer ", checkpoint.tokenizer_path()));
}

// A run resumes only on the configuration, data and tokenizer of its checkpoint. Data may lie at another
// path.
void require_same_run(const checkpoint::Checkpoint& own, const config::RunConfig& config,
                      const models::TrainingData& data, const ConsoleLog& log) {
  const std::vector<std::string>& trained_on = own.state().training_data;
  runs::require_same_configuration(
      own.path().string(), own.config(), config,
      trained_on.empty() ? runs::DataPaths::kCompared : runs::DataPaths::kIgnored);
  const std::string trained = concat(", which ", own.path(),
                                     " was trained on; restore the data, or start a new run with "
                                     "training.cooldown_from or training.initialize_from");
  if (trained_on.empty())
    log.warning(own.path().string() + " does not record its data; not compared with data.train");
  for (size_t i = 0; i < trained_on.size(); ++i) {
    const auto& [source, hash] = data.training_hashes.at(i);
    if (hash != trained_on[i])
      throw UsageError("data.train: ", source, " has other content (", hash, ") than ", trained_on[i],
                       trained);
  }
  if (own.has_tokenizer() && !has_tokenizer(own, data.tokenizer_json))
    throw UsageError("data.train: its tokenizer.json is not ", own.tokenizer_path(), trained);
}

// Opens the checkpoint that `key` names, as found by rank 0. Its error messages start with the key.
checkpoint::Checkpoint open_named(const char* key, const std::string& path, checkpoint::CheckpointUse use,
                                  distributed::Collectives& ranks, const ConsoleLog& log) {
  try {
    return *open_together(ranks, use, [&](const checkpoint::VerifyFiles& verify) {
      return std::optional(runs::open_checkpoint(path, log, use, verify));
    });
  } catch (const UsageError& error) {
    throw UsageError(key, ": ", error.what());
  }
}

void cool_down(Trainer& trainer, const config::RunConfig& config, const checkpoint::Checkpoint& checkpoint,
               const ConsoleLog& log) {
  const config::RunConfig there = checkpoint.config();
  require_same_trunk(checkpoint, there, config);
  warn_of_other_past(checkpoint, there, config, log);
  warn_of_other_tokenizer(checkpoint, trainer.data(), log);
  trainer.restore(checkpoint);
  log.message("continuing from " + checkpoint.path().string());
}

// The keys by which the same experts have other gates than in the source. A dense model counts as one with
// gates that sum to 1. From fixed to dynamic, theta begins at 1, which changes no gate.
std::vector<std::string> keys_of_other_gates(const config::RunConfig& there, const config::RunConfig& here) {
  if (here.model.is_dense()) return {};
  const bool dense = there.model.is_dense();
  const config::RoutingConfig &before = there.routing, &after = here.routing;
  std::vector<std::string> keys;
  if (!dense && before.normalization != after.normalization &&
      !(before.normalization == config::Normalization::kFixed &&
        after.normalization == config::Normalization::kDynamic))
    keys.emplace_back("routing.normalization");
  if (!dense && before.expert_normalization != after.expert_normalization)
    keys.emplace_back("routing.expert_normalization");
  if (after.renormalize != (dense ? config::Renormalize::kSum : before.renormalize))
    keys.emplace_back("routing.renormalize");
  if (after.gate_scale != (dense ? 1.0 : before.gate_scale)) keys.emplace_back("routing.gate_scale");
  return keys;
}

std::string describe_source(const config::RunConfig& config) {
  if (config.model.is_dense()) return "dense";
  return enum_name(config.routing.method) + format(", %.4g experts", config::mean_experts(config.routing));
}

std::string describe_start(const config::RunConfig& config, const SolvedStart& start) {
  const auto [least, most] = std::ranges::minmax(start.thresholds);
  const std::string p = least == most ? format("%.6f", least) : format("%.6f to %.6f", least, most);
  return format("; %s starts at p = %s, where the first %lld training tokens use %.4f experts",
                enum_name(config.routing.method).c_str(), p.c_str(), static_cast<long long>(start.tokens),
                start.experts);
}

void start_from(Trainer& trainer, const config::RunConfig& config, const checkpoint::Checkpoint& checkpoint,
                const ConsoleLog& log) {
  const InitialParameters initial(checkpoint, config);
  initial.require_fit(trainer.parameters().specs());
  warn_of_other_tokenizer(checkpoint, trainer.data(), log);
  if (const auto keys = keys_of_other_gates(initial.source_config(), config); !keys.empty())
    log.warning(concat("the same experts have other gates than in ", checkpoint.path(),
                       " (different: ", joined(keys, ", "), ")"));
  trainer.initialize_from(initial);
  std::string line = concat("starting from the parameters of ", checkpoint.path(), " (",
                            describe_source(initial.source_config()), ")");
  if (!config.model.is_dense() && config::has_controller(config.routing.method))
    line += describe_start(config, trainer.solve_initial_thresholds());
  log.message(line);
}

}  // namespace

bool InitialParameters::is_new(const ParameterSpec& spec) const {
  if (spec.role == ParameterRole::kRouter) return source_config_.model.is_dense();
  if (spec.role != ParameterRole::kRouterScale) return false;
  return source_config_.model.is_dense() ||
         source_config_.routing.normalization == config::Normalization::kFixed;
}

int64_t InitialParameters::slices() const {
  const int64_t dense = source_config_.model.ffn_hidden_size, expert = here_.model.ffn_hidden_size;
  return dense % expert == 0 && here_.model.num_experts % (dense / expert) == 0 ? dense / expert : 1;
}

std::pair<std::string, std::vector<int64_t>> InitialParameters::stored(const ParameterSpec& spec) const {
  if (!is_upcycled(spec)) return {spec.name, spec.shape};
  constexpr std::string_view kExperts = "experts.";
  std::string name = spec.name + ".weight";
  name.erase(name.rfind(kExperts), kExperts.size());
  const int64_t rows = spec.shape[1], columns = spec.shape[2], m = slices();
  if (is_down(spec)) return {name, {rows, m * columns}};
  return {name, {m * rows, columns}};
}

void InitialParameters::require_fit(const std::vector<ParameterSpec>& specs) const {
  Shapes there, here;
  for (const ParameterSpec& spec : models::make_model(source_config_).parameters)
    there.emplace(spec.name, spec.shape);
  for (const ParameterSpec& spec : specs)
    if (!is_new(spec)) here.insert(stored(spec));
  for (const auto* shapes : {&here, &there}) {
    for (const auto& [name, shape] : *shapes) {
      if (describe(here, name) == describe(there, name)) continue;
      throw UsageError("training.initialize_from: ", checkpoint_.path(), " has another model: ", name, " is ",
                       describe(there, name), " there and ", describe(here, name), " here; ",
                       (name.ends_with("gate.scale") ? "use its routing.normalization"
                                                     : "choose a checkpoint of the same model"));
    }
  }
}

void InitialParameters::fill(const ParameterSpec& spec, Tensor& whole) const {
  if (is_new(spec)) {
    parameters::initialize(spec, static_cast<uint64_t>(here_.training.seed), whole);
    if (spec.role != ParameterRole::kRouter) return;
    // [copies, m, D] without the rows of zero experts
    const Tensor rows =
        whole.narrow(0, 0, here_.model.num_experts).view({-1, slices(), here_.model.hidden_size});
    rows.copy_(rows.narrow(1, 0, 1).clone());
    return;
  }
  const auto [name, shape] = stored(spec);
  const std::span<const std::byte> bytes = checkpoint_.parameter(name, shape);
  if (!is_upcycled(spec)) return ops::copy_from_bytes(bytes, whole);
  const Tensor dense = at::empty(shape, whole.options());
  ops::copy_from_bytes(bytes, dense);
  fill_experts(spec, dense, whole);
}

void InitialParameters::fill_experts(const ParameterSpec& spec, const Tensor& dense, Tensor& whole) const {
  const int64_t m = slices(), D = here_.model.hidden_size, F = here_.model.ffn_hidden_size;
  // The slices of one copy, [m, 2F, D] or [m, D, F]
  const Tensor parts = is_down(spec) ? dense.view({D, m, F}).transpose(0, 1) * m
                                     : dense.view({2, m, F, D}).transpose(0, 1).reshape({m, 2 * F, D});
  whole.view({-1, m, spec.shape[1], spec.shape[2]}).copy_(parts);
  if (here_.training.upcycle_noise == 0) return;
  ParameterSpec noise = spec;
  noise.name = "noise of " + spec.name;
  noise.initial = {parameters::Distribution::kTruncatedNormal,
                   here_.training.upcycle_noise * parts.square().mean().sqrt().item<double>()};
  Tensor drawn = at::empty_like(whole);
  parameters::initialize(noise, static_cast<uint64_t>(here_.training.seed), drawn);
  whole.add_(drawn);
}

void check_configuration(const config::RunConfig& config, distributed::Collectives& ranks) {
  if (const auto difference = distributed::find_difference(config::to_yaml(config), ranks)) {
    const auto keys = config::differing_keys(config::parse_run_config(difference->there, "its configuration"),
                                             config::parse_run_config(difference->first, "rank 0's"));
    throw distributed::RanksDiffer(ExitStatus::kUsage, difference->name(),
                                   " has another configuration than rank 0 (different: ", joined(keys, ", "),
                                   "); start all ranks with the same file and overrides");
  }
}

void check_kernels(const config::RunConfig& config, const at::Device& device,
                   distributed::Collectives& ranks) {
  if (!config.parallel.reproducible || ranks.size() == 1) return;
  if (const auto difference = distributed::find_difference(kernels_on(device), ranks))
    throw distributed::RanksDiffer(ExitStatus::kUsage, difference->name(), " computes on ", difference->there,
                                   ", rank 0 on ", difference->first,
                                   ", with other rounding; start all ranks on equal machines, or set "
                                   "parallel.reproducible=false");
}

void check_data(const models::TrainingData& data, distributed::Collectives& ranks) {
  std::string mine;
  for (const auto* hashes : {&data.training_hashes, &data.validation_hashes})
    for (const auto& [source, hash] : *hashes) mine.append(hash).append(" ").append(source).append("\n");
  const auto difference = distributed::find_difference(mine, ranks);
  if (!difference) return;
  std::istringstream there(difference->there), first(difference->first);
  std::string source, line;
  while (std::getline(there, source) && std::getline(first, line) && source == line) {
  }
  throw distributed::RanksDiffer(ExitStatus::kData, difference->name(),
                                 " has other data than rank 0: ", source.substr(source.find(' ') + 1),
                                 " has other content there; copy it again");
}

std::optional<checkpoint::Checkpoint> checkpoint_to_resume(const fs::path& run,
                                                           distributed::Collectives& ranks,
                                                           const ConsoleLog& log, int64_t before) {
  constexpr checkpoint::CheckpointUse kUse = checkpoint::CheckpointUse::kTraining;
  return open_together(ranks, kUse, [&](const checkpoint::VerifyFiles& verify) {
    auto newest = runs::newest_checkpoint(runs::checkpoints_of(run), log, kUse, verify, before);
    if (!newest && before == runs::kAnyStep) runs::require_no_lost_checkpoints(run);
    return newest;
  });
}

std::optional<fs::path> begin_or_resume(Trainer& trainer, const config::RunConfig& config,
                                        const ConsoleLog& log, int64_t before) {
  if (const auto own = checkpoint_to_resume(config.output, trainer.ranks(), log, before)) {
    require_same_run(*own, config, trainer.data(), log);
    trainer.restore(*own);
    log.message("resuming from " + own->path().string());
    return own->path();
  }
  const config::TrainingConfig& training = config.training;
  if (!training.cooldown_from.empty()) {
    const checkpoint::Checkpoint checkpoint =
        open_named("training.cooldown_from", training.cooldown_from, checkpoint::CheckpointUse::kTraining,
                   trainer.ranks(), log);
    cool_down(trainer, config, checkpoint, log);
  } else if (!training.initialize_from.empty()) {
    const checkpoint::Checkpoint checkpoint =
        open_named("training.initialize_from", training.initialize_from,
                   checkpoint::CheckpointUse::kInference, trainer.ranks(), log);
    start_from(trainer, config, checkpoint, log);
  } else {
    trainer.initialize();
  }
  return std::nullopt;
}

}  // namespace dtopp::train

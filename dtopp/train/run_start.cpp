#include "dtopp/train/run_start.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "dtopp/base/enum_name.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/checkpoint/checkpoint_layout.h"
#include "dtopp/config/config.h"
#include "dtopp/distributed/groups/rank_agreement.h"
#include "dtopp/optim/schedule.h"
#include "dtopp/train/initial_parameters.h"

namespace dtopp::train {
namespace {

namespace fs = std::filesystem;

// Identifies a file, as opposed to a copy of it, on all hosts that share its file system; empty if it is
// missing.
std::string identity_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return "";
  return std::to_string(status.st_ino) + " " + std::to_string(status.st_ctim.tv_sec) + " " +
         std::to_string(status.st_ctim.tv_nsec);
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
// no error.
// Sets `shares` if this rank reads the same files as rank 0; other ranks verify nothing here.
std::string verify_part(const fs::path& path, checkpoint::CheckpointUse use, distributed::Collectives& ranks,
                        bool& shares) {
  const auto identities = distributed::gather_bytes(ranks, identity_of(path / kManifestName), "verify");
  const auto rank = static_cast<std::ptrdiff_t>(ranks.rank());
  shares = identities[static_cast<size_t>(rank)] == identities.front();
  const auto before = std::count(identities.begin(), identities.begin() + rank, identities.front());
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
    throw distributed::RanksDiffer(ExitStatus::kCheckpoint,
                                   difference->name() + " has another " + checkpoint.path().string() +
                                       " than rank 0; copy the folder of rank 0 there");
}

// Opens on all ranks the checkpoint that find(verify) returns on rank 0.
template <class Find>
std::optional<checkpoint::Checkpoint> open_together(distributed::Collectives& ranks,
                                                    checkpoint::CheckpointUse use, const Find& find) {
  if (ranks.size() == 1) return find(verify_content);
  const auto tell = [&](const fs::path& path) {
    return fs::path(distributed::broadcast_bytes(ranks, path.string(), /*root=*/0, "verify"));
  };
  bool shares = true;
  if (ranks.rank() == 0) {
    std::optional<checkpoint::Checkpoint> found = find([&](const fs::path& path, const ManifestFiles&) {
      tell(path);
      const std::string wrong = verify_part(path, use, ranks, shares);
      if (wrong.starts_with(kUnreadable)) throw checkpoint::UnreadableCheckpoint(wrong.substr(1));
      if (!wrong.empty()) throw DataError(wrong.substr(1));
    });
    tell({});  // nothing more to verify
    tell(found ? found->path() : fs::path());
    if (found) require_same_copy(*found, ranks);
    return found;
  }
  for (fs::path path = tell({}); !path.empty(); path = tell({})) verify_part(path, use, ranks, shares);
  const fs::path path = tell({});
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
  std::string keys;
  for (const std::string& key : config::differing_keys(here, there)) {
    if (!may_change(key)) keys += (keys.empty() ? "" : ", ") + key;
  }
  const std::string what = "training.cooldown_from: " + checkpoint.path().string();
  if (!keys.empty())
    throw UsageError(what + " has another configuration (different: " + keys +
                     "); use the values of that run");
  if (checkpoint.state().step >= here.training.steps)
    throw UsageError(what + " already has " + std::to_string(checkpoint.state().step) +
                     " steps; set training.steps above " + std::to_string(checkpoint.state().step));
}

void warn_of_other_past(const checkpoint::Checkpoint& checkpoint, const config::RunConfig& there,
                        const config::RunConfig& here, const ConsoleLog& log) {
  const int64_t step = checkpoint.state().step;
  // Six digits: schedules that agree may differ in the last bits.
  const auto rate = [&](const config::RunConfig& config) {
    return format("%.6g", optim::learning_rate(config.optimizer, step, config.training.steps));
  };
  if (rate(there) != rate(here))
    log.warning("step " + std::to_string(step) + " had a learning rate of " + rate(there) +
                ", but this schedule gives " + rate(here) + "; choose schedules that agree at this step");
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
  log.warning("data.train was prepared with another tokenizer than that of " + checkpoint.path().string() +
              "; prepare it with --tokenizer " + checkpoint.tokenizer_path().string());
}

// A run resumes only on the configuration, data and tokenizer of its checkpoint. Data may lie at another
// path.
void require_same_run(const checkpoint::Checkpoint& own, const config::RunConfig& config,
                      const models::TrainingData& data, const ConsoleLog& log) {
  const std::vector<std::string>& trained_on = own.state().training_data;
  runs::require_same_configuration(
      own.path().string(), own.config(), config,
      trained_on.empty() ? runs::DataPaths::kCompared : runs::DataPaths::kIgnored);
  const std::string trained = ", which " + own.path().string() +
                              " was trained on; restore the data, or start a new run with "
                              "training.cooldown_from or training.initialize_from";
  if (trained_on.empty())
    log.warning(own.path().string() + " does not record its data; not compared with data.train");
  for (size_t i = 0; i < trained_on.size(); ++i) {
    const auto& [source, hash] = data.training_hashes.at(i);
    if (hash != trained_on[i])
      throw UsageError(format("data.train: %s has other content (%s) than %s%s", source.c_str(), hash.c_str(),
                              trained_on[i].c_str(), trained.c_str()));
  }
  if (own.has_tokenizer() && !has_tokenizer(own, data.tokenizer_json))
    throw UsageError("data.train: its tokenizer.json is not " + own.tokenizer_path().string() + trained);
}

// Opens the checkpoint that `key` names, as found by rank 0. Its error messages start with the key.
checkpoint::Checkpoint open_named(const char* key, const std::string& path, checkpoint::CheckpointUse use,
                                  distributed::Collectives& ranks, const ConsoleLog& log) {
  try {
    return *open_together(ranks, use, [&](const checkpoint::VerifyFiles& verify) {
      return std::optional(runs::open_checkpoint(path, log, use, verify));
    });
  } catch (const UsageError& error) {
    throw UsageError(std::string(key) + ": " + error.what());
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
std::string keys_of_other_gates(const config::RunConfig& there, const config::RunConfig& here) {
  if (here.model.is_dense()) return "";
  const bool dense = there.model.is_dense();
  const config::RoutingConfig &before = there.routing, &after = here.routing;
  std::string keys;
  if (!dense && before.normalization != after.normalization &&
      !(before.normalization == config::Normalization::kFixed &&
        after.normalization == config::Normalization::kDynamic))
    keys += ", routing.normalization";
  if (!dense && before.expert_normalization != after.expert_normalization)
    keys += ", routing.expert_normalization";
  if (after.renormalize != (dense ? config::Renormalize::kSum : before.renormalize))
    keys += ", routing.renormalize";
  if (after.gate_scale != (dense ? 1.0 : before.gate_scale)) keys += ", routing.gate_scale";
  return keys.empty() ? "" : keys.substr(2);
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
  if (const std::string keys = keys_of_other_gates(initial.there(), config); !keys.empty())
    log.warning("the same experts have other gates than in " + checkpoint.path().string() +
                " (different: " + keys + ")");
  trainer.initialise_from(initial);
  std::string line = "starting from the parameters of " + checkpoint.path().string() + " (" +
                     describe_source(initial.there()) + ")";
  if (!config.model.is_dense() && config::has_controller(config.routing.method))
    line += describe_start(config, trainer.solve_initial_thresholds());
  log.message(line);
}

}  // namespace

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

std::optional<std::filesystem::path> begin_or_resume(Trainer& trainer, const config::RunConfig& config,
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
    trainer.initialise();
  }
  return std::nullopt;
}

}  // namespace dtopp::train

#include "dtopp/runs/run_directory.h"

#include "dtopp/base/files.h"
#include "dtopp/base/format.h"
#include "dtopp/base/json.h"
#include "dtopp/checkpoint/tensor_files.h"
#include "dtopp/runs/metrics.h"

namespace dtopp::runs {

namespace {

// The outermost missing directory of path and its parents; empty if path exists.
fs::path first_missing(fs::path path) {
  fs::path missing;
  std::error_code error;
  for (; !path.empty() && !fs::exists(path, error); path = path.parent_path()) missing = path;
  return missing;
}

// Without a checkpoint, nothing but the paths tells the data apart.
void refuse_other_configuration(const config::RunConfig& config) {
  const auto there = config_of(config.output);
  if (!there) return;
  const bool resumes = !checkpoint::list_checkpoint_steps(checkpoints_of(config.output)).empty();
  require_same_configuration(config.output, *there, config,
                             resumes ? DataPaths::kIgnored : DataPaths::kCompared);
}

constexpr char kRunFile[] = "run.json";
constexpr char kRunFormat[] = "dtopp run 1";

std::optional<JsonFields> run_record(const fs::path& run) {
  if (path_kind(run / kRunFile) == PathKind::kNothing) return std::nullopt;
  return JsonFields(read_manifest(run, kRunFormat, kRunFile).about, (run / kRunFile).string());
}

}  // namespace

void require_same_configuration(const std::string& what, const config::RunConfig& there,
                                const config::RunConfig& here, DataPaths paths) {
  config::RunConfig moved = there;
  if (paths == DataPaths::kIgnored && there.data.train.size() == here.data.train.size())
    for (size_t i = 0; i < here.data.train.size(); ++i) moved.data.train[i].path = here.data.train[i].path;
  std::string keys;
  for (const std::string& key : config::differing_keys(moved, here))
    if (config::affects_result(key)) keys += (keys.empty() ? "" : ", ") + key;
  if (keys.empty()) return;
  const bool is_longer = here.training.steps > there.training.steps;
  throw UsageError(
      what, " holds a run of another configuration (different: ", keys,
      "); choose another output, or the same configuration to resume",
      (is_longer ? "; to train longer, set training.cooldown_from=" + what + " and another output" : ""));
}

void require_no_lost_checkpoints(const fs::path& run) {
  std::string history;
  if (const auto record = run_record(run)) {
    const auto step = record->count("saved_step");
    if (step > 0) history = std::string(kRunFile) + " records one of step " + std::to_string(step);
  } else if (std::error_code none; fs::file_size(run / kMetricsFile, none) > 0 && !none) {
    history = std::string(kMetricsFile) + " holds the metrics of a run";
  }
  if (history.empty()) return;
  throw CheckpointError(checkpoints_of(run), ": holds no checkpoint, but ", history,
                        "; restore or mount that folder, or choose another output to start again");
}

fs::path checkpoints_of(const fs::path& run) { return run / "checkpoints"; }

fs::path config_file_of(const fs::path& run) { return run / checkpoint::kConfigFile; }

std::optional<config::RunConfig> config_of(const fs::path& run) {
  const fs::path path = config_file_of(run);
  if (path_kind(path) == PathKind::kNothing) return std::nullopt;
  constexpr uint64_t kMaxBytes = uint64_t{1} << 20;
  return config::parse_run_config(read_file(path, kMaxBytes), path.string());
}

std::optional<checkpoint::Checkpoint> newest_checkpoint(const fs::path& checkpoints, const ConsoleLog& log,
                                                        checkpoint::CheckpointUse use,
                                                        const checkpoint::VerifyFiles& verify,
                                                        int64_t before) {
  std::string newest_error;
  for (const int64_t step : checkpoint::list_checkpoint_steps(checkpoints)) {
    if (step >= before) continue;
    try {
      return checkpoint::Checkpoint(checkpoints / checkpoint::checkpoint_name(step), use, verify);
    } catch (const checkpoint::UnreadableCheckpoint&) {
      throw;
    } catch (const CheckpointError& error) {
      log.warning(std::string(error.what()) + "; passed over");
      if (newest_error.empty()) newest_error = error.what();
    }
  }
  if (newest_error.empty()) return std::nullopt;
  throw CheckpointError(checkpoints, ": none of its checkpoints verifies; the newest: ", newest_error);
}

checkpoint::Checkpoint open_checkpoint(const fs::path& path, const ConsoleLog& log,
                                       checkpoint::CheckpointUse use, const checkpoint::VerifyFiles& verify) {
  for (const auto& checkpoints : {checkpoints_of(path), path})
    if (auto newest = newest_checkpoint(checkpoints, log, use, verify)) return std::move(*newest);
  return checkpoint::Checkpoint(path, use, verify);
}

RunDirectory::RunDirectory(const config::RunConfig& config, bool is_main_rank)
    : config_(config), path_(without_trailing_slash(config.output)), is_main_rank_(is_main_rank) {
  if (path_kind(path_) != PathKind::kNothing) create();
}

void RunDirectory::require_space(uint64_t checkpoint_bytes, const ConsoleLog& log) const {
  if (!is_main_rank_) return;
  const fs::path missing = first_missing(fs::absolute(path_));
  std::error_code error;
  const uint64_t free = fs::space(missing.empty() ? path_ : missing.parent_path(), error).available;
  if (error) return;  // create() reports it
  const auto bytes = [](uint64_t count) { return format_bytes(static_cast<double>(count)); };
  const std::string state = path_.string() + ": its file system has " + bytes(free) + " free, ";
  if (free < checkpoint_bytes)
    throw DataError(state, "and a checkpoint needs ", bytes(checkpoint_bytes),
                    "; free space or choose another output");
  const config::CheckpointConfig& saving = config_.checkpoint;
  const int64_t saves = saving.every > 0 ? (config_.training.steps + saving.every - 1) / saving.every : 1;
  const int64_t most = saving.keep > 0 ? std::min(saves, saving.keep + 1) : saves;
  const auto there = static_cast<int64_t>(checkpoint::list_checkpoint_steps(checkpoints_of(path_)).size());
  const int64_t more = std::max<int64_t>(1, most - there);
  if (free / static_cast<uint64_t>(more) < checkpoint_bytes)
    log.warning(state + "and the run writes " + std::to_string(more) + " more checkpoints of " +
                bytes(checkpoint_bytes) + "; free space, or lower checkpoint.keep");
}

void RunDirectory::create() {
  if (!is_main_rank_ || lock_) return;
  first_created_ = first_missing(path_);
  try {
    lock();
  } catch (...) {
    if (!lock_) lock_is_new_ = false;  // another process holds it
    remove_created();
    kept_ = true;
    throw;
  }
}

void RunDirectory::lock() {
  std::error_code error;
  make_directories(path_);
  lock_is_new_ = !fs::exists(path_ / ".lock", error);
  lock_.emplace(path_);
  if (path_kind(checkpoints_of(path_)) == PathKind::kDirectory) put_back_replaced(checkpoints_of(path_));
  refuse_other_configuration(config_);
}

RunDirectory::~RunDirectory() {
  if (lock_ && !kept_) remove_created();
}

void RunDirectory::remove_created() const {
  std::error_code ignored;  // a directory that is not empty stays
  // Remove the lock file while it is locked: a waiting process then finds it locked or missing.
  if (lock_is_new_) fs::remove(path_ / ".lock", ignored);
  if (first_created_.empty()) return;
  for (fs::path path = path_;; path = path.parent_path()) {
    fs::remove(path, ignored);
    if (path == first_created_) return;
  }
}

void RunDirectory::keep(int64_t saved_step) {
  kept_ = true;
  const auto record = run_record(path_);
  restarts_ = record ? record->integer("restarts", 0) + 1 : 0;
  write_file_atomically(config_file_of(path_), config::to_yaml(config_));
  record_saved(saved_step);
}

void RunDirectory::finish_save(int64_t step) {
  const auto record = run_record(path_);
  if (record && record->integer("saved_step") == step) return;
  const fs::path checkpoints = checkpoints_of(path_);
  remove_leftovers(checkpoints);
  checkpoint::remove_old(checkpoints, step, config_.checkpoint.keep);
  keep(step);
}

void RunDirectory::record_saved(int64_t step) const {
  const std::string about = format("{\"restarts\": %ld, \"saved_step\": %ld}", restarts_, step);
  write_file_atomically(path_ / kRunFile, format_manifest({kRunFormat, about, {}}));
}

}  // namespace dtopp::runs

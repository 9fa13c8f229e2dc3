#include "dtopp/checkpoint/checkpoint.h"

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/checkpoint/tensor_files.h"

namespace dtopp::checkpoint {
namespace {

constexpr std::array<std::pair<const char*, int64_t TrainingState::*>, 8> kIntegers = {
    {{"step", &TrainingState::step},
     {"tokens", &TrainingState::tokens},
     {"assignments", &TrainingState::assignments},
     {"sample_position", &TrainingState::sample_position},
     {"seed", &TrainingState::seed},
     {"skipped_steps", &TrainingState::skipped_steps},
     {"consecutive_skips", &TrainingState::consecutive_skips},
     {"last_validation_step", &TrainingState::last_validation_step}}};
constexpr char kTrainingData[] = "training_data";

constexpr uint64_t kMaxTextBytes = uint64_t{1} << 28;

bool lists_tensors(const ManifestFiles& manifest, std::string_view kind) {
  return manifest.contains(whole_file(kind)) || manifest.contains(index_file(kind));
}

// Opens the files of one kind of tensors that the manifest lists.
std::vector<SafetensorsFile> open_tensors(const fs::path& path, const ManifestFiles& manifest,
                                          std::string_view kind) {
  std::vector<SafetensorsFile> files;
  if (manifest.contains(whole_file(kind))) {
    files.emplace_back(path / whole_file(kind));
    return files;
  }
  const auto index_path = path / index_file(kind);
  std::map<std::string, size_t> opened;
  for (const auto& [name, file] : read_tensor_index(index_path)) {
    if (!manifest.contains(file))
      throw DataError(index_path, ": ", name, ": its file is not in the manifest");
    const auto [position, is_new] = opened.emplace(file, files.size());
    if (is_new) files.emplace_back(path / position->first);
    if (!files[position->second].find(name))
      throw DataError(index_path, ": ", name, ": not in ", position->first);
  }
  return files;
}

std::span<const std::byte> find_tensor(const fs::path& path, const std::vector<SafetensorsFile>& files,
                                       const std::string& name, const std::vector<int64_t>& shape) {
  for (const auto& file : files) {
    const auto* tensor = file.find(name);
    if (!tensor) continue;
    if (tensor->dtype == "F32" && tensor->shape == shape) return tensor->bytes;
    throw CheckpointError(path, ": tensor \"", name, "\" is ", tensor->dtype, " ", dump_json(tensor->shape),
                          ", expected F32 ", dump_json(shape),
                          "; use the configuration the checkpoint was written with");
  }
  throw CheckpointError(path, ": no tensor \"", name,
                        "\"; use the configuration the checkpoint was written with");
}

// Throws UsageError if `path` has no file of a checkpoint: the user mistyped it. A path with some of the
// files is a damaged checkpoint, which the caller detects.
void check_is_checkpoint(const fs::path& path) {
  if (path_kind(path) != PathKind::kDirectory)
    throw UsageError(path, ": no checkpoint there; name a checkpoint or a run directory");
  if (is_checkpoint_name(path.filename().string())) return;
  for (const std::string& name : {std::string(kManifestName), whole_file(kModel), index_file(kModel),
                                  whole_file(kOptimizer), index_file(kOptimizer), std::string(kStateFile)})
    if (path_kind(path / name) != PathKind::kNothing) return;
  throw UsageError(path, ": holds no checkpoint; name a checkpoint or a run directory");
}

void check_names(const fs::path& path, const ManifestFiles& manifest) {
  for (const char* const name : {kStateFile, kConfigFile})
    if (!manifest.contains(name)) throw DataError((path / kManifestName).string(), ": lists no ", name);
  if (!lists_tensors(manifest, kModel))
    throw DataError((path / kManifestName).string(), ": lists no ", whole_file(kModel));
  if (!manifest.contains(kTokenizerFile) && path_kind(path / kTokenizerFile) != PathKind::kNothing)
    throw DataError(
        (path / kTokenizerFile).string(),
        ": not in the manifest; move it elsewhere, else it is used as the checkpoint's tokenizer");
}

void require_optimizer(const fs::path& path, const ManifestFiles& manifest) {
  std::string missing = lists_tensors(manifest, kOptimizer) ? "" : whole_file(kOptimizer);
  for (const auto& [name, entry] : manifest)
    if (missing.empty() && is_optimizer_file(name) && path_kind(path / name) == PathKind::kNothing)
      missing = name;
  if (missing.empty()) return;
  throw DataError(
      (path / missing).string(),
      ": is missing: evaluate and generate can use this checkpoint, but no run can resume from it");
}

// Runs `work` on rank 0 only. Returns when rank 0 is done; throws on every rank if it failed.
template <class Work>
void on_first(SavingRanks& ranks, const Work& work) {
  std::exception_ptr error;
  try {
    if (ranks.rank() == 0) work();
  } catch (...) {
    error = std::current_exception();
  }
  ranks.check(error);
}

// Writes the text files of a checkpoint, the manifest last. `files` are the tensor files already written.
void write_texts(const fs::path& directory, const CheckpointContents& contents, const TensorFiles& tensors,
                 ManifestFiles files) {
  const auto write = [&](const std::string& name, std::string_view text) {
    Hasher hasher;
    OutputFile file(directory / name, &hasher);
    file.write(text);
    file.sync_and_close();
    files[name] = {file.size(), hasher.hexdigest()};
  };
  for (const auto& [name, text] : tensors.indexes) write(name, text);
  if (!contents.router.empty()) {
    Hasher hasher;
    const uint64_t size = write_safetensors(directory / kRouterFile, contents.router, {}, &hasher);
    files[kRouterFile] = {size, hasher.hexdigest()};
  }
  write(kStateFile, format_training_state(contents.state));
  write(kConfigFile, contents.config_yaml);
  if (!contents.tokenizer_json.empty()) write(kTokenizerFile, contents.tokenizer_json);
  if (!contents.images_json.empty()) write(kImagesFile, contents.images_json);
  write(kManifestName, format_manifest({kCheckpointFormat, {}, files}));
}

bool is_same_tensor(const TensorView& stored, const TensorSource& source) {
  if (stored.name != source.name || stored.bytes.size() != source.size) return false;
  bool same = true;
  uint64_t begin = 0;
  source.read(0, source.size, [&](std::span<const std::byte> bytes) {
    same = same && std::ranges::equal(bytes, stored.bytes.subspan(begin, bytes.size()));
    begin += bytes.size();
  });
  return same;
}

// True if the checkpoint of this step verifies and holds the same state.
bool is_already_saved(const fs::path& path, const CheckpointContents& contents) {
  try {
    const Checkpoint checkpoint(path);
    return checkpoint.state() == contents.state &&
           std::ranges::equal(checkpoint.router(), contents.router, is_same_tensor);
  } catch (const Error&) {
    return false;
  }
}

// True if the directory looks like a complete checkpoint. It does not read the tensors' bytes.
bool is_complete(const fs::path& path) {
  try {
    verify_sizes(path, read_manifest(path, kCheckpointFormat).files);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

// True if the directory holds only files that its manifest lists, damaged or not. Then dtopp wrote all of
// them.
bool holds_only_a_checkpoint(const fs::path& path) {
  try {
    const ManifestFiles files = read_manifest(path, kCheckpointFormat).files;
    return std::ranges::all_of(list_directory(path), [&](const fs::path& entry) {
      const std::string name = entry.filename().string();
      return name == kManifestName || files.contains(name);
    });
  } catch (const DataError&) {
    return false;
  }
}

}  // namespace

std::string format_training_state(const TrainingState& state) {
  ordered_json object;
  for (const auto& [key, member] : kIntegers) object[key] = state.*member;
  object[kTrainingData] = state.training_data;
  return dump_json(object, 2) + "\n";
}

TrainingState parse_training_state(const std::string& text, const std::string& what) {
  const JsonFields fields(text, what);
  TrainingState state;
  for (const auto& [key, member] : kIntegers) {
    const bool may_be_negative =
        member == &TrainingState::seed || member == &TrainingState::last_validation_step;
    state.*member = fields.integer(key, may_be_negative ? std::numeric_limits<int64_t>::min() : 0);
  }
  if (fields.has(kTrainingData)) state.training_data = fields.texts(kTrainingData);
  return state;
}

void keep_files_for(CheckpointUse use, ManifestFiles& files) {
  if (use == CheckpointUse::kInference)
    std::erase_if(files, [](const auto& file) { return is_optimizer_file(file.first); });
}

Checkpoint::Checkpoint(const fs::path& path, CheckpointUse use, const VerifyFiles& verify)
    : path_(path), use_(use) {
  check_is_checkpoint(path);
  try {
    ManifestFiles manifest = read_manifest(path, kCheckpointFormat).files;
    hash_ = hash_of(manifest);
    if (use == CheckpointUse::kTraining) require_optimizer(path, manifest);
    keep_files_for(use, manifest);
    verify(path, manifest);
    check_names(path, manifest);
    has_tokenizer_ = manifest.contains(kTokenizerFile);
    state_ = parse_training_state(read_file(path / kStateFile, kMaxTextBytes), (path / kStateFile).string());
    config_yaml_ = read_file(path / kConfigFile, kMaxTextBytes);
    model_ = open_tensors(path, manifest, kModel);
    if (use == CheckpointUse::kTraining) optimizer_ = open_tensors(path, manifest, kOptimizer);
    if (lists_tensors(manifest, kEma)) ema_files_ = open_tensors(path, manifest, kEma);
    if (manifest.contains(kRouterFile)) router_.emplace(path / kRouterFile);
    if (manifest.contains(kImagesFile)) images_json_ = read_file(path / kImagesFile, kMaxTextBytes);
  } catch (const DataError& error) {
    if (may_pass(error)) throw UnreadableCheckpoint(error.what());
    throw CheckpointError(error.what(), "; restore the file or use an earlier checkpoint");
  }
}

std::span<const TensorView> Checkpoint::router() const {
  return router_ ? std::span(router_->tensors()) : std::span<const TensorView>();
}

config::RunConfig Checkpoint::config() const {
  return config::parse_run_config(config_yaml_, (path_ / kConfigFile).string());
}

fs::path Checkpoint::tokenizer_path() const { return path_ / kTokenizerFile; }

std::span<const std::byte> Checkpoint::parameter(const std::string& name,
                                                 const std::vector<int64_t>& shape) const {
  return find_tensor(path_, model_, name, shape);
}

std::span<const std::byte> Checkpoint::slot(const std::string& name,
                                            const std::vector<int64_t>& shape) const {
  if (use_ != CheckpointUse::kTraining)
    throw std::logic_error("a checkpoint opened for inference has no moments");
  return find_tensor(path_, optimizer_, name, shape);
}

std::span<const std::byte> Checkpoint::ema(const std::string& name, const std::vector<int64_t>& shape) const {
  if (ema_files_.empty())
    throw CheckpointError(path_, ": no ", whole_file(kEma), ": this run keeps no average of its parameters");
  return find_tensor(path_, ema_files_, name, shape);
}

void remove_old(const fs::path& checkpoints, int64_t step, int64_t keep) {
  if (keep <= 0) return;
  int64_t complete = 0;
  for (const int64_t candidate : list_checkpoint_steps(checkpoints)) {
    if (candidate > step) continue;
    const auto path = checkpoints / checkpoint_name(candidate);
    if (complete < keep)
      complete += candidate == step || is_complete(path) ? 1 : 0;
    else if (holds_only_a_checkpoint(path))
      remove_durably(path);
  }
}

void write_checkpoint(const fs::path& directory, const CheckpointContents& contents, uint64_t shard_bytes) {
  OneProcess alone;
  const TensorFiles tensors = split_into_files(contents, shard_bytes);
  write_texts(directory, contents, tensors, write_tensor_files(directory, tensors.files, alone));
}

fs::path save_checkpoint(const fs::path& checkpoints, const CheckpointContents& contents, int64_t keep,
                         SavingRanks& ranks, uint64_t shard_bytes) {
  auto path = checkpoints / checkpoint_name(contents.state.step);
  const TensorFiles tensors = split_into_files(contents, shard_bytes);
  std::optional<AtomicDirectory> directory;  // on rank 0, unless there is nothing to write
  on_first(ranks, [&] {
    make_directories(checkpoints);
    remove_leftovers(checkpoints);
    if (!is_already_saved(path, contents)) directory.emplace(path, /*replace=*/true);
  });
  const fs::path temporary = ranks.gather(directory ? directory->temporary().string() : "").front();
  ManifestFiles written;
  if (!temporary.empty()) written = write_tensor_files(temporary, tensors.files, ranks);
  on_first(ranks, [&] {
    if (directory) {
      write_texts(temporary, contents, tensors, std::move(written));
      directory->commit();
    }
    remove_old(checkpoints, contents.state.step, keep);
  });
  return path;
}

}  // namespace dtopp::checkpoint

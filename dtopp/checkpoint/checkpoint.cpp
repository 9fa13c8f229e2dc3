#include "dtopp/checkpoint/checkpoint.h"

#include <stdexcept>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/json.h"
#include "dtopp/base/manifest.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/checkpoint/checkpoint_layout.h"
#include "dtopp/checkpoint/tensor_files.h"

namespace dtopp::checkpoint {
namespace {

namespace fs = std::filesystem;

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
      throw DataError(index_path.string() + ": " + name + ": its file is not in the manifest");
    const auto [position, is_new] = opened.emplace(file, files.size());
    if (is_new) files.emplace_back(path / position->first);
    if (!files[position->second].find(name))
      throw DataError(index_path.string() + ": " + name + ": not in " + position->first);
  }
  return files;
}

std::span<const std::byte> find_tensor(const fs::path& path, const std::vector<SafetensorsFile>& files,
                                       const std::string& name, const std::vector<int64_t>& shape) {
  for (const auto& file : files) {
    const auto* tensor = file.find(name);
    if (!tensor) continue;
    if (tensor->dtype == "F32" && tensor->shape == shape) return tensor->bytes;
    throw CheckpointError(path.string() + ": tensor \"" + name + "\" is " + tensor->dtype + " " +
                          dump_json(tensor->shape) + ", expected F32 " + dump_json(shape) +
                          "; use the configuration the checkpoint was written with");
  }
  throw CheckpointError(path.string() + ": no tensor \"" + name +
                        "\"; use the configuration the checkpoint was written with");
}

// Throws UsageError if `path` has no file of a checkpoint: the user mistyped it. A path with some of the
// files is a damaged checkpoint, which the caller detects.
void check_is_checkpoint(const fs::path& path) {
  if (path_kind(path) != PathKind::kDirectory)
    throw UsageError(path.string() + ": no checkpoint there; name a checkpoint or a run directory");
  if (is_checkpoint_name(path.filename().string())) return;
  for (const std::string& name : {std::string(kManifestName), whole_file(kModel), index_file(kModel),
                                  whole_file(kOptimizer), index_file(kOptimizer), std::string(kStateFile)})
    if (path_kind(path / name) != PathKind::kNothing) return;
  throw UsageError(path.string() + ": holds no checkpoint; name a checkpoint or a run directory");
}

void check_names(const fs::path& path, const ManifestFiles& manifest) {
  for (const char* const name : {kStateFile, kConfigFile})
    if (!manifest.contains(name)) throw DataError((path / kManifestName).string() + ": lists no " + name);
  if (!lists_tensors(manifest, kModel))
    throw DataError((path / kManifestName).string() + ": lists no " + whole_file(kModel));
  if (!manifest.contains(kTokenizerFile) && path_kind(path / kTokenizerFile) != PathKind::kNothing)
    throw DataError(
        (path / kTokenizerFile).string() +
        ": not in the manifest; move it elsewhere, else it is used as the checkpoint's tokenizer");
}

void require_optimizer(const fs::path& path, const ManifestFiles& manifest) {
  std::string missing = lists_tensors(manifest, kOptimizer) ? "" : whole_file(kOptimizer);
  for (const auto& [name, entry] : manifest)
    if (missing.empty() && is_optimizer_file(name) && path_kind(path / name) == PathKind::kNothing)
      missing = name;
  if (missing.empty()) return;
  throw DataError(
      (path / missing).string() +
      ": is missing: evaluate and generate can use this checkpoint, but no run can resume from it");
}

}  // namespace

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
    throw CheckpointError(error.what() + std::string("; restore the file or use an earlier checkpoint"));
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
    throw CheckpointError(path_.string() + ": no " + whole_file(kEma) +
                          ": this run keeps no average of its parameters");
  return find_tensor(path_, ema_files_, name, shape);
}

}  // namespace dtopp::checkpoint

#include "dtopp/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/manifest.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kModel[] = "model.safetensors";
constexpr char kModelIndex[] = "model.safetensors.index.json";
constexpr char kOptimizer[] = "optimizer.safetensors";
constexpr char kState[] = "state.json";
constexpr char kConfig[] = "config.yaml";
constexpr char kTokenizer[] = "tokenizer.json";
constexpr char kManifest[] = "manifest.json";
constexpr char kFormat[] = "dtopp checkpoint 1";
constexpr uint64_t kMaxTextBytes = uint64_t{1} << 28;

std::string directory_name(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%08lld", static_cast<long long>(step));
  return name;
}

// The step a checkpoint's directory name stands for; nullopt for other names.
std::optional<int64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  const auto digits = name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : "";
  if (digits.size() < 8 || digits.size() > 18 || digits.find_first_not_of("0123456789") != digits.npos)
    return std::nullopt;
  const int64_t step = std::stoll(digits);
  return directory_name(step) == name ? std::optional(step) : std::nullopt;
}

// Steps of the checkpoints in the directory, newest first; none where there is no directory.
std::vector<int64_t> list_steps(const fs::path& checkpoints) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints, error), end; !error && it != end; it.increment(error)) {
    std::error_code gone;
    const auto step = step_of(it->path().filename().string());
    if (step && fs::is_directory(it->path(), gone)) steps.push_back(*step);
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    throw file_error("list", checkpoints, error.value());
  std::ranges::sort(steps, std::greater());
  return steps;
}

// Writes the files of one directory and notes size and checksum of each.
class DirectoryWriter {
 public:
  explicit DirectoryWriter(fs::path directory) : directory_(std::move(directory)) {}

  void text(const std::string& name, std::string_view content) {
    Hasher hasher;
    OutputFile file(directory_ / name, &hasher);
    file.write(content);
    file.sync_and_close();
    manifest_[name] = {file.size(), hasher.hexdigest()};
  }

  void tensors(const std::string& name, const std::vector<TensorSource>& tensors) {
    Hasher hasher;
    const auto size = write_safetensors(directory_ / name, tensors, {{"format", "pt"}},
                                        &hasher);  // what transformers asks for
    manifest_[name] = {size, hasher.hexdigest()};
  }

  const ManifestFiles& manifest() const { return manifest_; }

 private:
  fs::path directory_;
  ManifestFiles manifest_;
};

// Tensors in order, each shard filled up to `shard_bytes`; a larger tensor has a shard of its own.
std::vector<std::vector<TensorSource>> split_into_shards(const std::vector<TensorSource>& tensors,
                                                         uint64_t shard_bytes) {
  std::vector<std::vector<TensorSource>> shards(1);
  uint64_t size = 0;
  for (const auto& tensor : tensors) {
    if (!shards.back().empty() && size + tensor.size > shard_bytes) {
      shards.emplace_back();
      size = 0;
    }
    shards.back().push_back(tensor);
    size += tensor.size;
  }
  return shards;
}

// Names as Hugging Face gives them, so that its readers find the shards.
void write_model(DirectoryWriter& writer, const std::vector<TensorSource>& parameters, uint64_t shard_bytes) {
  const auto shards = split_into_shards(parameters, shard_bytes);
  if (shards.size() == 1) return writer.tensors(kModel, parameters);
  json weight_map = json::object();
  uint64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    writer.tensors(name, shards[i]);
    for (const auto& tensor : shards[i]) {
      if (!weight_map.emplace(tensor.name, name).second) throw DataError(tensor.name + ": a parameter twice");
      total += tensor.size;
    }
  }
  const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  writer.text(kModelIndex, index.dump(2) + "\n");
}

// Whether the directory looks like a complete checkpoint, without reading the bytes of its tensors.
bool is_complete(const fs::path& path) {
  try {
    verify_sizes(path, read_manifest(path, kFormat).files);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

// Only up to `step`: newer ones are damaged (the run went on from before them) and may still be wanted.
void remove_old(const fs::path& checkpoints, int64_t step, int64_t keep) {
  if (keep <= 0) return;
  int64_t complete = 0;
  for (const int64_t candidate : list_steps(checkpoints)) {
    if (candidate > step) continue;
    const auto path = checkpoints / directory_name(candidate);
    if (complete == keep)
      remove_durably(path);
    else if (candidate == step || is_complete(path))
      ++complete;
  }
}

// Whether a checkpoint with this state is already there and verifies.
bool is_already_saved(const fs::path& path, const TrainingState& state) {
  try {
    return Checkpoint(path).state() == state;
  } catch (const Error&) {
    return false;
  }
}

// A checkpoint's files as far as the manifest names them.
std::vector<SafetensorsFile> open_model(const fs::path& path, const ManifestFiles& manifest) {
  std::vector<SafetensorsFile> files;
  if (manifest.contains(kModel)) {
    files.emplace_back(path / kModel);
    return files;
  }
  const auto index_path = path / kModelIndex;
  const auto index = json::parse(read_file(index_path, kMaxTextBytes), nullptr, /*allow_exceptions=*/false);
  const auto weight_map = index.is_object() ? index.value("weight_map", json()) : json();
  if (!weight_map.is_object()) throw DataError(index_path.string() + ": holds no weight_map");
  std::map<std::string, size_t> opened;
  for (const auto& [name, file] : weight_map.items()) {
    if (!file.is_string() || !manifest.contains(file.get<std::string>()))
      throw DataError(index_path.string() + ": " + name + ": its file is not in the manifest");
    const auto [position, is_new] = opened.emplace(file.get<std::string>(), files.size());
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
                          json(tensor->shape).dump() + ", expected F32 " + json(shape).dump() +
                          "; use the configuration the checkpoint was written with");
  }
  throw CheckpointError(path.string() + ": no tensor \"" + name +
                        "\"; use the configuration the checkpoint was written with");
}

// A directory that is not one is a mistake of the user's, unless something of a checkpoint is left in it.
void check_is_checkpoint(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error))
    throw UsageError(path.string() + ": no checkpoint there; name a checkpoint or a run directory");
  if (fs::exists(path / kManifest, error) || step_of(path.filename().string())) return;
  for (const char* const name : {kModel, kModelIndex, kOptimizer, kState})
    if (fs::exists(path / name, error)) return;
  throw UsageError(path.string() + ": holds no checkpoint; name a checkpoint or a run directory");
}

void check_names(const fs::path& path, const ManifestFiles& manifest) {
  for (const char* const name : {kState, kConfig, kOptimizer})
    if (!manifest.contains(name)) throw DataError((path / kManifest).string() + ": lists no " + name);
  if (!manifest.contains(kModel) && !manifest.contains(kModelIndex))
    throw DataError((path / kManifest).string() + ": lists no " + kModel);
  std::error_code error;
  if (!manifest.contains(kTokenizer) && fs::exists(path / kTokenizer, error))
    throw DataError((path / kTokenizer).string() + ": not in the manifest; remove it");
}

}  // namespace

fs::path save_checkpoint(const fs::path& checkpoints, const CheckpointContents& contents, int64_t keep,
                         uint64_t shard_bytes) {
  make_directories(checkpoints);
  remove_leftovers(checkpoints);
  auto path = checkpoints / directory_name(contents.state.step);
  if (!is_already_saved(path, contents.state)) {
    const auto fill = [&](const fs::path& directory) {
      DirectoryWriter writer(directory);
      write_model(writer, contents.parameters, shard_bytes);
      writer.tensors(kOptimizer, contents.optimizer);
      writer.text(kState, format_training_state(contents.state));
      writer.text(kConfig, contents.config_yaml);
      if (!contents.tokenizer_json.empty()) writer.text(kTokenizer, contents.tokenizer_json);
      writer.text(kManifest, format_manifest({kFormat, {}, writer.manifest()}));
    };
    write_directory_atomically(path, fill, /*replace=*/true);
  }
  remove_old(checkpoints, contents.state.step, keep);
  return path;
}

Checkpoint::Checkpoint(const fs::path& path) : path_(path) {
  check_is_checkpoint(path);
  try {
    const ManifestFiles manifest = read_manifest(path, kFormat).files;
    verify_content(path, manifest);
    check_names(path, manifest);
    state_ = parse_training_state(read_file(path / kState, kMaxTextBytes), (path / kState).string());
    config_yaml_ = read_file(path / kConfig, kMaxTextBytes);
    model_ = open_model(path, manifest);
    optimizer_.emplace_back(path / kOptimizer);
  } catch (const DataError& error) {
    throw CheckpointError(error.what() + std::string("; restore the file or use an earlier checkpoint"));
  }
}

std::span<const std::byte> Checkpoint::parameter(const std::string& name,
                                                 const std::vector<int64_t>& shape) const {
  return find_tensor(path_, model_, name, shape);
}

std::span<const std::byte> Checkpoint::moment(const std::string& name,
                                              const std::vector<int64_t>& shape) const {
  return find_tensor(path_, optimizer_, name, shape);
}

std::optional<Checkpoint> newest_checkpoint(const fs::path& checkpoints,
                                            const std::function<void(const std::string&)>& warn) {
  std::string newest_error;
  for (const int64_t step : list_steps(checkpoints)) {
    try {
      return Checkpoint(checkpoints / directory_name(step));
    } catch (const Error& error) {
      warn(std::string(error.what()) + "; passed over");
      if (newest_error.empty()) newest_error = error.what();
    }
  }
  if (newest_error.empty()) return std::nullopt;
  throw CheckpointError(checkpoints.string() +
                        ": none of its checkpoints verifies; the newest: " + newest_error);
}

Checkpoint open_checkpoint(const fs::path& path, const std::function<void(const std::string&)>& warn) {
  for (const auto& checkpoints : {path / "checkpoints", path}) {
    if (list_steps(checkpoints).empty()) continue;
    if (auto newest = newest_checkpoint(checkpoints, warn)) return std::move(*newest);
  }
  return Checkpoint(path);
}

}  // namespace dtopp

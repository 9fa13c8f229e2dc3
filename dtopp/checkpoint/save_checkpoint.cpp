#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/json.h"
#include "dtopp/base/manifest.h"
#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/checkpoint/checkpoint_layout.h"

namespace dtopp {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

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
  if (shards.size() == 1) return writer.tensors(kModelFile, parameters);
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
  writer.text(kModelIndexFile, dump_json(index, 2) + "\n");
}

// Whether the directory looks like a complete checkpoint, without reading the bytes of its tensors.
bool is_complete(const fs::path& path) {
  try {
    verify_sizes(path, read_manifest(path, kCheckpointFormat).files);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

// Whether nothing is in the directory but what its manifest lists, damaged or not: what dtopp wrote.
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

// Checkpoints of later steps than `step` are damaged: the run passed them over when it resumed. They stay.
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

}  // namespace

bool is_already_saved(const fs::path& checkpoints, const TrainingState& state) {
  try {
    return Checkpoint(checkpoints / checkpoint_name(state.step)).state() == state;
  } catch (const Error&) {
    return false;
  }
}

fs::path save_checkpoint(const fs::path& checkpoints, const CheckpointContents& contents, int64_t keep,
                         uint64_t shard_bytes) {
  make_directories(checkpoints);
  remove_leftovers(checkpoints);
  auto path = checkpoints / checkpoint_name(contents.state.step);
  if (!is_already_saved(checkpoints, contents.state)) {
    const auto fill = [&](const fs::path& directory) {
      DirectoryWriter writer(directory);
      write_model(writer, contents.parameters, shard_bytes);
      writer.tensors(kOptimizerFile, contents.optimizer);
      writer.text(kStateFile, format_training_state(contents.state));
      writer.text(kConfigFile, contents.config_yaml);
      if (!contents.tokenizer_json.empty()) writer.text(kTokenizerFile, contents.tokenizer_json);
      writer.text(kManifestName, format_manifest({kCheckpointFormat, {}, writer.manifest()}));
    };
    write_directory_atomically(path, fill, /*replace=*/true);
  }
  remove_old(checkpoints, contents.state.step, keep);
  return path;
}

}  // namespace dtopp

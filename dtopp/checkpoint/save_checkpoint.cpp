#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "dtopp/base/atomic_directory.h"
#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/hash.h"
#include "dtopp/base/manifest.h"
#include "dtopp/checkpoint/checkpoint.h"
#include "dtopp/checkpoint/checkpoint_layout.h"
#include "dtopp/checkpoint/tensor_files.h"

namespace dtopp::checkpoint {
namespace {

namespace fs = std::filesystem;

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
                         uint64_t shard_bytes) {
  OneProcess alone;
  return save_checkpoint(checkpoints, contents, keep, alone, shard_bytes);
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

#include "dtopp/train/run_resuming.h"

#include <algorithm>
#include <vector>

#include <sys/stat.h>

#include "dtopp/base/errors.h"
#include "dtopp/checkpoint/checkpoint_layout.h"
#include "dtopp/runs/run_directory.h"

namespace dtopp {
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

// Verifies this rank's part of the checkpoint. Returns the same error message on all ranks; empty: no error.
// Sets `shares` if this rank reads the same files as rank 0; other ranks verify nothing here.
std::string verify_part(const fs::path& path, CheckpointUse use, Collectives& ranks, bool& shares) {
  const auto identities = gather_bytes(ranks, identity_of(path / kManifestName), "verify");
  const auto rank = static_cast<std::ptrdiff_t>(ranks.rank());
  shares = identities[static_cast<size_t>(rank)] == identities.front();
  const auto before = std::count(identities.begin(), identities.begin() + rank, identities.front());
  const auto all = std::ranges::count(identities, identities.front());
  std::string wrong;
  try {
    if (shares) {
      ManifestFiles files = read_manifest(path, kCheckpointFormat).files;
      keep_files_for(use, files);
      verify_content(path, part_of(files, static_cast<size_t>(before), static_cast<size_t>(all)));
    }
  } catch (const DataError& error) {
    wrong = error.what();
  }
  for (const std::string& other : gather_bytes(ranks, wrong, "verify"))
    if (wrong.empty() || (!other.empty() && other < wrong)) wrong = other;
  return wrong;
}

// Finds a checkpoint and verifies it with `verify`.
using FindCheckpoint = std::function<std::optional<Checkpoint>(const VerifyFiles& verify)>;

// Opens on all ranks the checkpoint that rank 0 finds.
std::optional<Checkpoint> open_together(Collectives& ranks, CheckpointUse use, const FindCheckpoint& find) {
  if (ranks.size() == 1) return find(verify_content);
  const auto tell = [&](const fs::path& path) {
    return fs::path(broadcast_bytes(ranks, path.string(), /*root=*/0, "verify"));
  };
  bool shares = true;
  std::optional<Checkpoint> found;
  if (ranks.rank() == 0) {
    found = find([&](const fs::path& path, const ManifestFiles&) {
      tell(path);
      const std::string wrong = verify_part(path, use, ranks, shares);
      if (!wrong.empty()) throw DataError(wrong);
    });
    tell({});  // nothing more to verify
    tell(found ? found->path() : fs::path());
    return found;
  }
  for (fs::path path = tell({}); !path.empty(); path = tell({})) verify_part(path, use, ranks, shares);
  const fs::path path = tell({});
  if (path.empty()) return found;
  found.emplace(path, use, shares ? VerifyFiles(verify_sizes) : verify_content);
  return found;
}

}  // namespace

std::optional<Checkpoint> checkpoint_to_resume(const fs::path& run, Collectives& ranks,
                                               const ConsoleLog& log) {
  constexpr CheckpointUse kUse = CheckpointUse::kTraining;
  return open_together(ranks, kUse, [&](const VerifyFiles& verify) {
    return newest_checkpoint(checkpoints_of(run), log, kUse, verify);
  });
}

Checkpoint named_checkpoint(const fs::path& path, CheckpointUse use, Collectives& ranks,
                            const ConsoleLog& log) {
  return *open_together(ranks, use, [&](const VerifyFiles& verify) {
    return std::optional(open_checkpoint(path, log, use, verify));
  });
}

}  // namespace dtopp

#include "dtopp/runs/run_directory.h"

#include <utility>

#include "dtopp/base/errors.h"
#include "dtopp/base/files.h"
#include "dtopp/base/path_kind.h"
#include "dtopp/checkpoint/checkpoint_layout.h"

namespace dtopp {

namespace fs = std::filesystem;

fs::path checkpoints_of(const fs::path& run) { return run / "checkpoints"; }

fs::path config_file_of(const fs::path& run) { return run / kConfigFile; }

std::optional<RunConfig> config_of(const fs::path& run) {
  const fs::path path = config_file_of(run);
  if (path_kind(path) == PathKind::kNothing) return std::nullopt;
  constexpr uint64_t kMaxBytes = uint64_t{1} << 20;
  return parse_run_config(read_file(path, kMaxBytes), path.string());
}

std::optional<Checkpoint> newest_checkpoint(const fs::path& checkpoints, const ConsoleLog& log,
                                            CheckpointUse use, const VerifyFiles& verify) {
  std::string newest_error;
  for (const int64_t step : list_checkpoint_steps(checkpoints)) {
    try {
      return Checkpoint(checkpoints / checkpoint_name(step), use, verify);
    } catch (const Error& error) {
      log.warning(std::string(error.what()) + "; passed over");
      if (newest_error.empty()) newest_error = error.what();
    }
  }
  if (newest_error.empty()) return std::nullopt;
  throw CheckpointError(checkpoints.string() +
                        ": none of its checkpoints verifies; the newest: " + newest_error);
}

Checkpoint open_checkpoint(const fs::path& path, const ConsoleLog& log, CheckpointUse use,
                           const VerifyFiles& verify) {
  for (const auto& checkpoints : {checkpoints_of(path), path}) {
    if (auto newest = newest_checkpoint(checkpoints, log, use, verify)) return std::move(*newest);
  }
  return Checkpoint(path, use, verify);
}

}  // namespace dtopp
